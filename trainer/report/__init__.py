"""What became of a run: pictures, a page and a summary, from the files in its folder."""
