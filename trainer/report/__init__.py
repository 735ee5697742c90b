"""The report of a run: charts, a page and a summary, made from the files in its folder."""
