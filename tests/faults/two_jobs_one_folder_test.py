"""Two jobs of one name and one folder for tables."""

from harness import JobTest, main, wait_until


class TwoJobs(JobTest):
    def test_neither_removes_what_the_other_hands_out(self) -> None:
        with self.job() as first, self.job() as second:
            tables = first.folder / "tables"
            for job in (first, second):
                job.settings = [*job.settings, f"--tables={tables}"]
                job.start_all()
            written = {path.parent.parent for path in tables.glob("*/*/term-*/epoch-*/*.table")}
            self.assertEqual(len(written), 2, "a folder for each controller, with its tables in it")
            for job in (first, second):
                job.start_engine("b")
                job.publish()
                job.check_alive()
            wait_until(lambda: all(path.exists() for path in written), "both folders")


if __name__ == "__main__":
    main()
