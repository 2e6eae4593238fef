"""gRPC's reflection, in both versions: which services there are, and their messages, for clients without a schema."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2

from fusebert.formats.protobuf.schema import messages
from fusebert.serve.front import Asked
from fusebert.serve.grpc import GrpcService, Method

_NOT_FOUND, _UNIMPLEMENTED = 5, 12  # gRPC's codes
SCHEMA = """
ExtensionRequest: 1 containing_type string, 2 extension_number int32
ServerReflectionRequest: 1 host string, 3 file_by_filename string, 4 file_containing_symbol string, 5 file_containing_extension ExtensionRequest, 6 all_extension_numbers_of_type string, 7 list_services string
FileDescriptorResponse: 1 file_descriptor_proto bytes*
ServiceResponse: 1 name string
ListServiceResponse: 1 service ServiceResponse*
ErrorResponse: 1 error_code int32, 2 error_message string
ServerReflectionResponse: 1 valid_host string, 2 original_request ServerReflectionRequest, 4 file_descriptor_response FileDescriptorResponse, 6 list_services_response ListServiceResponse, 7 error_response ErrorResponse
"""  # noqa: E501


def reflect(services: Sequence[GrpcService]) -> list[GrpcService]:
    """The services that tell about these, and about themselves."""
    told: list[GrpcService] = [*services]
    for version in ("v1", "v1alpha"):
        types = messages(f"grpc.reflection.{version}", SCHEMA)
        book = _Book(told, types["ServerReflectionResponse"])
        method = Method(
            "ServerReflectionInfo",
            types["ServerReflectionRequest"],
            types["ServerReflectionResponse"],
            book.tell,
            "both",
        )
        told.append(GrpcService(f"grpc.reflection.{version}.ServerReflection", [method]))
    return told[len(services) :]


class _Book:
    """The services, whose list may grow until it is first read, and their descriptions."""

    def __init__(self, services: Sequence[GrpcService], answer: Any) -> None:
        self._services, self._answer = services, answer

    async def tell(self, asked: Asked, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: ARG002
        """One answer for each question."""
        async for question in stream:
            yield self._answer(valid_host=question.host, original_request=question, **self._find(question))

    def _find(self, question: Any) -> dict[str, Any]:
        if question.HasField("list_services"):
            return {"list_services_response": {"service": [{"name": service.name} for service in self._services]}}
        if question.HasField("file_by_filename"):
            files = [file for file in self._files() if file.name == question.file_by_filename]
        elif question.HasField("file_containing_symbol"):
            files = [file for file in self._files() if _defines(file, question.file_containing_symbol)]
        else:
            return {"error_response": {"error_code": _UNIMPLEMENTED, "error_message": "there are no extensions"}}
        if not files:
            return {"error_response": {"error_code": _NOT_FOUND, "error_message": "there is nothing of that name"}}
        return {"file_descriptor_response": {"file_descriptor_proto": [files[0].SerializeToString()]}}

    def _files(self) -> list[Any]:
        """A file for each service: its messages, and the service itself."""
        files = []
        for service in self._services:
            file = descriptor_pb2.FileDescriptorProto()
            service.methods[0].question.DESCRIPTOR.file.CopyToProto(file)
            added = file.service.add(name=service.name.removeprefix(f"{file.package}."))
            for method in service.methods:
                added.method.add(
                    name=method.name,
                    input_type=f".{method.question.DESCRIPTOR.full_name}",
                    output_type=f".{method.answer.DESCRIPTOR.full_name}",
                    client_streaming=method.streams == "both",
                    server_streaming=bool(method.streams),
                )
            files.append(file)
        return files


def _defines(file: Any, symbol: str) -> bool:
    names = [entry.name for kind in (file.message_type, file.enum_type, file.service) for entry in kind]
    names += [f"{service.name}.{method.name}" for service in file.service for method in service.method]
    return symbol in {f"{file.package}.{name}" for name in names}
