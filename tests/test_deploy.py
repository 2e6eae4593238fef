"""The files of deploy/ name routes, metrics and options that the server has."""

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from fusebert.cli.call import app
from fusebert.serve.batcher import Batcher, Limits
from fusebert.serve.metrics import Metrics
from fusebert.serve.server import CALLS

DEPLOY = Path(__file__).parents[1] / "deploy"
ROUTES = {call.path: call for call in CALLS if call.method == "GET"}


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def of_kind(name, kind):
    (found,) = (one for one in documents(name) if one["kind"] == kind)
    return found["spec"]


def containers():
    pods = of_kind("deployment.yaml", "Deployment")["template"]["spec"]
    return {
        "deployment.yaml": (pods["containers"][0], pods),
        "kserve.yaml": (of_kind("kserve.yaml", "ServingRuntime")["containers"][0], {}),
    }


@pytest.mark.parametrize("name", ["deployment.yaml", "kserve.yaml"])
def test_probes_ask_routes_that_need_no_key(name):
    container, _ = containers()[name]
    probes = [probe["httpGet"]["path"] for key, probe in container.items() if key.endswith("Probe")]
    assert len(probes) >= 2
    assert all(ROUTES[path].public for path in probes)


@pytest.mark.parametrize("name", ["deployment.yaml", "kserve.yaml"])
def test_the_arguments_are_options_of_serve_with_such_values(name):
    container, _ = containers()[name]
    words = container["args"]
    serve = get_command(app).commands[words[0]]
    known = {option: one for one in serve.params for option in one.opts}
    given = [word for word in words if word.startswith("--")]
    assert set(given) <= set(known)
    context = serve.make_context("serve", [word.replace("{{.Name}}", "name") for word in words[1:]])
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports <= {context.params["port"], context.params["grpc_port"]}


def test_there_is_more_time_to_stop_than_draining_takes():
    container, pod = containers()["deployment.yaml"]
    drain = float(container["args"][container["args"].index("--drain") + 1])
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + pause


def test_pods_are_scaled_by_a_metric_of_the_queue():
    class Service:
        name, crashes, batcher = "model", 0, Batcher(Limits(), 1e-3)

    metrics = Metrics()
    metrics.watch([Service()])
    names = {line.split("{")[0] for line in metrics.text().decode().splitlines() if not line.startswith("#")}
    asked = of_kind("deployment.yaml", "HorizontalPodAutoscaler")["metrics"]
    assert {one["pods"]["metric"]["name"] for one in asked if one["type"] == "Pods"} == {"fusebert_queue_tokens"}
    assert "fusebert_queue_tokens" in names
    pods = of_kind("deployment.yaml", "Deployment")["template"]
    assert pods["metadata"]["annotations"]["prometheus.io/path"] in ROUTES
    assert of_kind("deployment.yaml", "PodDisruptionBudget")["selector"]["matchLabels"] == pods["metadata"]["labels"]
    resources = pods["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]


def test_kserve_speaks_the_protocol_that_the_server_has():
    assert of_kind("kserve.yaml", "InferenceService")["predictor"]["model"]["protocolVersion"] == "v2"
    assert {"/v2/health/ready", "/v2/health/live", "/v2/models/{name}"} <= set(ROUTES)


def test_the_image_runs_as_a_plain_user_and_has_no_compiler():
    build, final = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.M)[1:]
    assert "g++" in build
    assert not re.search(r"apt-get|g\+\+|cmake|COPY \.", final)
    assert re.search(r"^USER [1-9]\d*$", final, re.M)
    words = re.search(r"^CMD \[(.*)\]$", final, re.M)[1].replace('"', "").split(", ")
    assert get_command(app).commands[words[0]].make_context("serve", words[1:]).params["host"] == "0.0.0.0"


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_ray_takes_the_arguments():
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    from fusebert.serve import ray

    (given,) = documents("ray-serve.yaml")[0]["applications"]
    assert given["import_path"] == f"{ray.__name__}:{ray.app.__name__}"
    assert build(ray.app, given["args"])
