"""What a report of `weightcast doctor --json` says."""


def finding(report: dict, name: str) -> dict:
    """The worst of this name."""
    group, _, check = name.partition(".")
    found = [one for one in report["findings"] if (one["group"], one["check"]) == (group, check)]
    assert found, [f"{one['group']}.{one['check']}" for one in report["findings"]]
    return found[-1]


def troubles(report: dict) -> list[str]:
    bad = [one for one in report["findings"] if one["level"] in ("warn", "fail")]
    return [f"{one['group']}.{one['check']} {one['text']}" for one in bad]
