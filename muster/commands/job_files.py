"""Find the job file of `muster submit`, and list the job files of the repository."""

from __future__ import annotations

from pathlib import Path

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home

_FOLDERS = ("slurm/jobs", "examples")


def find_job_file(job: str, home: Home) -> Path:
    """Return the path of a job file, relative to the current folder or to the repository."""
    for place in (Path(job), home.repo / job):
        if place.is_file():
            return place
    is_folder = Path(job).is_dir() or (home.repo / job).is_dir()
    raise explain_missing_job(f"{job} is a folder" if is_folder else f"file {job} does not exist", home)


def explain_missing_job(problem: str, home: Home) -> Stop:
    """Return an error that lists the job files of the repository, each with what it does."""
    jobs = describe_job_files(home.repo)
    width = max(map(len, jobs), default=0)
    listed = "".join(f"\n  {name:{width}}  {what}" for name, what in jobs.items())
    return Stop(f"job: {problem}; these exist:{listed}", "name one of them, or a job file of your own", BAD_INPUT)


def describe_job_files(repo: Path) -> dict[str, str]:
    """Return what each job file in the repository does, which is its first line of comment, by its path there."""
    files = [file for folder in _FOLDERS for file in sorted((repo / folder).glob("*.sbatch"))]
    return {str(file.relative_to(repo)): _read_title(file) for file in files}


def _read_title(file: Path) -> str:
    comments = (line for line in file.read_text().splitlines() if line.startswith("# "))
    _, _, what = next(comments, "").partition(": ")
    return what.removesuffix(".")
