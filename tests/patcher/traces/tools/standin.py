"""A torch_npu whose analyse() does what its environment says: for what the real one does only when something breaks."""

ANALYSE = """\
import os, pathlib, signal, sys, time

def analyse(profiler_path, max_process_number=4{export}):
    path, how = pathlib.Path(profiler_path), os.environ["STANDIN"]
    exports = {chosen}
    exports = [exports] if isinstance(exports, str) else exports or ["text"]
    output = path / "ASCEND_PROFILER_OUTPUT"
    assert not output.exists()
    output.mkdir()
    if how.startswith("waits"):
        (output / "trace_view.json").write_text("[{{")
        (path.parent / "begun").touch()
    if how == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "fails":
        sys.exit(3)
    if how == "hangs" or how == "waits":
        time.sleep(600)
    if how == "waits in a child":
        os.fork() or time.sleep(600)
        time.sleep(600)
    if how == "nothing":
        print("2026 [INFO] start\\\\n2026 [ERROR] profiler.py: Call analyse failed. Exception: no space \\\\x1b[31m left")
        return
    if "text" in exports:
        (output / "trace_view.json").write_text("[{{" if how == "half" else "[{{}}]")
        if how == "half":
            (output / "ascend_pytorch_profiler_0.db-journal").touch()
    if how == "no db":
        print("2026 [ERROR] profiler.py: Task [DbParser] run failed.")
    elif "db" in exports:
        (output / "ascend_pytorch_profiler_0.db").write_bytes(DATABASE)

DATABASE = b"SQLite format 3\\\\0" + (512).to_bytes(2, "big") + bytes(10) + (1).to_bytes(4, "big") + bytes(68 + 412)
"""


def install(folder, *, exports=True):
    """A folder for PYTHONPATH; without ``exports`` it is a release whose analyse() cannot be told what to export."""
    package = folder / "torch_npu" / "profiler"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    words = {"export": ", export_type=None", "chosen": "export_type"} if exports else {"export": "", "chosen": "None"}
    (package / "profiler.py").write_text(ANALYSE.format(**words).replace("\\\\", "\\"))
    return folder
