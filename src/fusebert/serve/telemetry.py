"""Telemetry: requests as spans of OpenTelemetry, each with its stages, sent to a collector."""

from __future__ import annotations

import time
from typing import Any

from fusebert.errors import FusebertError
from fusebert.serve.service import Request, clock
from fusebert.serve.trace import Trace

_STAGES = ("tokenise", "wait", "compute")


class Exporter:
    """Exports a span for each request, with one below it for each of its stages, to an OpenTelemetry collector at
    `endpoint`; `processor` takes them elsewhere."""

    def __init__(self, endpoint: str, processor: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        except ImportError as error:
            raise FusebertError(f"--otlp needs {error.name}: pip install 'fusebert[trace]'") from None

        class Ids(RandomIdGenerator):
            """Random ids, but for the span that its client was told of."""

            told = 0

            def generate_span_id(self) -> int:
                own, self.told = self.told, 0
                return own or super().generate_span_id()

        self._api, self._ids = trace, Ids()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "fusebert"}), id_generator=self._ids)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("fusebert.serve")

    def record(self, path: str, status: int, begun: float, request: Request) -> None:
        """A request has been answered."""
        since = time.time_ns() - int(clock() * 1e9)  # what the clock showed in 1970

        def at(moment: float) -> int:
            return since + int(moment * 1e9)

        span = self._tracer.start_span(
            path, self._context(request.trace), self._api.SpanKind.SERVER, start_time=at(begun),
            attributes={"http.route": path, "http.response.status_code": status},
        )  # fmt: skip
        below = self._api.set_span_in_context(span)
        for service, task in request.tasks:
            span.set_attributes(
                {"fusebert.model": service.name, "fusebert.texts": task.count, "fusebert.lane": task.lane}
            )
            moments = (task.arrived, task.tokenised, task.started, task.ended)
            for name, begin, end in zip(_STAGES, moments, moments[1:], strict=False):
                if begin and end:
                    self._tracer.start_span(name, below, start_time=at(begin)).end(at(end))
        span.end(at(clock()))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _context(self, trace: Trace | None) -> Any:
        if trace is None:
            return None
        self._ids.told = int(trace.span, 16)
        flags = self._api.TraceFlags(int(trace.flags, 16))
        parent = self._api.SpanContext(int(trace.trace, 16), int(trace.parent, 16), is_remote=True, trace_flags=flags)
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent))
