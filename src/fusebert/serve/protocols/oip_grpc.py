"""The Open Inference Protocol over gRPC, with the calls that Triton's clients add to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.protobuf.schema import messages
from fusebert.serve.front import Asked, StatusError, explain
from fusebert.serve.grpc import GrpcService, Method
from fusebert.serve.protocols import oip
from fusebert.serve.protocols.tensors import Tensor, pack, read_tensor
from fusebert.serve.service import Request

_NAME = "inference.GRPCInferenceService"
_CONTENTS = {"BYTES": "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents"}
_SCHEMA = """
DataType = TYPE_INVALID:0 TYPE_BOOL:1 TYPE_UINT8:2 TYPE_UINT16:3 TYPE_UINT32:4 TYPE_UINT64:5 TYPE_INT8:6 TYPE_INT16:7 TYPE_INT32:8 TYPE_INT64:9 TYPE_FP16:10 TYPE_FP32:11 TYPE_FP64:12 TYPE_STRING:13 TYPE_BF16:14
ServerLiveRequest:
ServerLiveResponse: 1 live bool
ServerReadyRequest:
ServerReadyResponse: 1 ready bool
ModelReadyRequest: 1 name string, 2 version string
ModelReadyResponse: 1 ready bool
ServerMetadataRequest:
ServerMetadataResponse: 1 name string, 2 version string, 3 extensions string*
ModelMetadataRequest: 1 name string, 2 version string
TensorMetadata: 1 name string, 2 datatype string, 3 shape int64+
ModelMetadataResponse: 1 name string, 2 versions string*, 3 platform string, 4 inputs TensorMetadata*, 5 outputs TensorMetadata*
InferParameter: 1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 double_param double, 5 uint64_param uint64
ParametersEntry: 1 key string, 2 value InferParameter
InferTensorContents: 2 int_contents int32+, 3 int64_contents int64+, 8 bytes_contents bytes*
InferInputTensor: 1 name string, 2 datatype string, 3 shape int64+, 4 parameters ParametersEntry*, 5 contents InferTensorContents
InferRequestedOutputTensor: 1 name string, 2 parameters ParametersEntry*
ModelInferRequest: 1 model_name string, 2 model_version string, 3 id string, 4 parameters ParametersEntry*, 5 inputs InferInputTensor*, 6 outputs InferRequestedOutputTensor*, 7 raw_input_contents bytes*
InferOutputTensor: 1 name string, 2 datatype string, 3 shape int64+
ModelInferResponse: 1 model_name string, 2 model_version string, 3 id string, 5 outputs InferOutputTensor*, 6 raw_output_contents bytes*
ModelStreamInferResponse: 1 error_message string, 2 infer_response ModelInferResponse
ModelConfigRequest: 1 name string, 2 version string
ModelInput: 1 name string, 2 data_type DataType, 4 dims int64+, 8 optional bool
ModelOutput: 1 name string, 2 data_type DataType, 3 dims int64+
ModelDynamicBatching: 4 priority_levels uint64
ModelConfig: 1 name string, 2 platform string, 17 backend string, 4 max_batch_size int32, 5 input ModelInput*, 6 output ModelOutput*, 11 dynamic_batching ModelDynamicBatching
ModelConfigResponse: 1 config ModelConfig
ModelStatisticsRequest: 1 name string, 2 version string
StatisticDuration: 1 count uint64, 2 ns uint64
InferStatistics: 1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration, 4 compute_input StatisticDuration, 5 compute_infer StatisticDuration, 6 compute_output StatisticDuration
InferBatchStatistics: 1 batch_size uint64
ModelStatistics: 1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, 5 execution_count uint64, 6 inference_stats InferStatistics, 7 batch_stats InferBatchStatistics*
ModelStatisticsResponse: 1 model_stats ModelStatistics*
RepositoryIndexRequest: 1 repository_name string, 2 ready bool
ModelIndex: 1 name string, 2 version string, 3 state string, 4 reason string
RepositoryIndexResponse: 1 models ModelIndex*
RepositoryModelLoadRequest: 2 model_name string
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: 2 model_name string
RepositoryModelUnloadResponse:
"""  # noqa: E501
MESSAGES = messages("inference", _SCHEMA)


async def server_live(asked: Asked, message: Any) -> Any:  # noqa: ARG001
    """The process answers."""
    return MESSAGES["ServerLiveResponse"](live=True)


async def server_ready(asked: Asked, message: Any) -> Any:  # noqa: ARG001
    """Whether requests are answered."""
    return MESSAGES["ServerReadyResponse"](ready=asked.server.ready)


async def model_ready(asked: Asked, message: Any) -> Any:
    """Whether a model is there and answers."""
    found = asked.server.services.get(message.name)
    ready = found is not None and found.healthy and not asked.server.stopping and message.version in ("", oip.VERSION)
    return MESSAGES["ModelReadyResponse"](ready=ready)


async def server_metadata(asked: Asked, message: Any) -> Any:  # noqa: ARG001
    """What the server is."""
    return MESSAGES["ServerMetadataResponse"](**oip.server_metadata())


async def metadata(asked: Asked, message: Any) -> Any:
    """A model's tensors."""
    return MESSAGES["ModelMetadataResponse"](**oip.metadata(oip.find(asked.server, message.name, message.version)))


async def configuration(asked: Asked, message: Any) -> Any:
    """A model as Triton describes one."""
    service = oip.find(asked.server, message.name, message.version)
    return MESSAGES["ModelConfigResponse"](config=oip.configuration(service, asked.server.bounds))


async def statistics(asked: Asked, message: Any) -> Any:
    """What a model has done, or all of them."""
    services = asked.server.services.values()
    chosen = [oip.find(asked.server, message.name, message.version)] if message.name else services
    return MESSAGES["ModelStatisticsResponse"](
        model_stats=[oip.statistics(asked.server, service) for service in chosen]
    )


async def index(asked: Asked, message: Any) -> Any:
    """Every model with its state, or those that are ready."""
    models = [model for model in oip.index(asked.server) if model["state"] == "READY" or not message.ready]
    return MESSAGES["RepositoryIndexResponse"](models=models)


async def refuse(asked: Asked, message: Any) -> Any:  # noqa: ARG001
    """What would change the server from outside."""
    raise StatusError(501, oip.UNCHANGEABLE)


async def infer(asked: Asked, message: Any) -> Any:
    """Tensors in, tensors out; answers are always raw, which is all that Triton's clients read."""
    service = oip.find(asked.server, message.model_name, message.model_version)
    oip.direct(asked.request, _parameters(message.parameters))
    found = await oip.infer(asked, service, _read_inputs(message), [output.name for output in message.outputs])
    counts = {output.name: _parameters(output.parameters).get("classification") for output in message.outputs}
    found = [oip.classify(service, tensor, counts.get(tensor.name)) for tensor in found]
    return MESSAGES["ModelInferResponse"](
        model_name=service.name,
        model_version=oip.VERSION,
        id=message.id,
        outputs=[{"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape} for tensor in found],
        raw_output_contents=[pack(tensor) for tensor in found],
    )


async def infer_stream(asked: Asked, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """One answer for each message, in their order; an error is an answer too."""
    async for message in stream:
        own = replace(asked, request=Request(asked.request.lane, asked.request.deadline))
        try:
            yield MESSAGES["ModelStreamInferResponse"](infer_response=await infer(own, message))
        except Exception as error:
            failure = explain(error, "ModelStreamInfer")
            yield MESSAGES["ModelStreamInferResponse"](error_message=failure.message, infer_response={"id": message.id})
        finally:
            own.request.release()


def _parameters(entries: Iterable[Any]) -> dict[str, Any]:
    found = {}
    for entry in entries:
        fields = entry.value.ListFields()
        found[entry.key] = fields[-1][1] if fields else None
    return found


def _read_inputs(message: Any) -> list[Tensor]:
    raw = message.raw_input_contents
    if raw and (len(raw) != len(message.inputs) or any(given.HasField("contents") for given in message.inputs)):
        raise FusebertError("raw_input_contents: one for each input is expected, and no other contents beside them")
    tensors = []
    for number, given in enumerate(message.inputs):
        if any(entry.key.startswith("shared_memory") for entry in given.parameters):
            raise StatusError(501, oip.UNSHARED)
        name = _CONTENTS.get(given.datatype, "bytes_contents")
        content = raw[number] if raw else list(getattr(given.contents, name))
        tensors.append(read_tensor(given.name[:80], given.datatype, given.shape, content))
    return tensors


def _method(name: str, work: Any, answer: str = "", streams: str = "", public: bool = False) -> Method:
    question = "ModelInferRequest" if work is infer_stream else f"{name}Request"
    return Method(name, MESSAGES[question], MESSAGES[answer or f"{name}Response"], work, streams, public)


SERVICE = GrpcService(
    _NAME,
    [
        _method("ServerLive", server_live, public=True),
        _method("ServerReady", server_ready, public=True),
        _method("ModelReady", model_ready),
        _method("ServerMetadata", server_metadata),
        _method("ModelMetadata", metadata),
        _method("ModelConfig", configuration),
        _method("ModelStatistics", statistics),
        _method("ModelInfer", infer),
        _method("ModelStreamInfer", infer_stream, streams="both"),
        _method("RepositoryIndex", index),
        _method("RepositoryModelLoad", refuse),
        _method("RepositoryModelUnload", refuse),
    ],
)
