"""Files that share a server which takes long to start stay in one process of `pytest -n`."""

from tests.fixtures.together import group_of


def test_files_that_use_one_server_stay_together() -> None:
    assert group_of("tests/e2e/test_quickstart.py") == group_of("tests/e2e/test_ops_page.py") == "served"
    assert group_of("tests/integration/engine/test_engine_openai.py") == "engine_process"
    assert group_of("tests/integration/gateway/test_audit.py") == "engine_process"


def test_other_files_are_handed_out_one_by_one() -> None:
    alone = "tests/e2e/test_real_model.py"
    assert group_of(alone) == alone
