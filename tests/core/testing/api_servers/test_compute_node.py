"""Google's client for Node drives the emulated Compute Engine. npm fetches it, where it can."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.support.instances import ZONE, body

pytestmark = [pytest.mark.slow, pytest.mark.turn(5), pytest.mark.timeout(600)]

# The client takes a host and a port, and writes them into the address one after the other: so the emulator's token, which
# is the first part of each path, goes with the port.
PROGRAM = """\
const {InstancesClient, ZoneOperationsClient} = require('@google-cloud/compute');
const {GoogleAuth, OAuth2Client} = require('google-auth-library');

const [url, zone] = [new URL(process.argv[2]), process.argv[5]];
const [sent, other] = process.argv.slice(3, 5).map((text) => JSON.parse(text));
const authClient = new OAuth2Client();
authClient.setCredentials({access_token: 'node', expiry_date: Date.now() + 3600e3});
const options = {
  apiEndpoint: url.hostname, port: url.port + url.pathname, protocol: 'http', fallback: 'rest',
  auth: new GoogleAuth({authClient, projectId: 'p'}),
};

async function main() {
  const instances = new InstancesClient(options), operations = new ZoneOperationsClient(options);
  const where = {project: 'p', zone};
  const wait = async (asked) => (await operations.wait({...where, operation: asked.latestResponse.name}))[0];
  const seen = {};
  seen.made = (await wait((await instances.insert({...where, instanceResource: sent}))[0])).status;
  for await (const [scope, found] of instances.aggregatedListAsync({project: 'p'}, {autoPaginate: false}))
    if (found.instances.length) seen[scope] = found.instances.map((one) => [one.name, one.status]);
  seen.deleted = (await wait((await instances.delete({...where, instance: sent.name}))[0])).status;
  await instances.get({...where, instance: sent.name}).catch((error) => { seen.gone = error.code; });
  const failed = await wait((await instances.insert({...where, instanceResource: {...sent, ...other, name: 'ko-b'}}))[0]);
  const [error] = failed.error.errors;
  seen.failed = error.code;
  seen.others = error.errorDetails.map((one) => one.errorInfo).find((one) => one).metadatas.zonesAvailable;
  console.log(JSON.stringify(seen));
}
main().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the program finds the client."""
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("there is no Node here")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    (folder / "drive.js").write_text(PROGRAM, encoding="utf-8")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "@google-cloud/compute@6"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    if done.returncode:
        pytest.skip(f"npm does not serve Google's client: {done.stderr[-300:]}")
    return folder


def test_google_s_client_for_node_makes_lists_and_deletes_an_instance(folder: Path) -> None:
    with Emulator(hosts=False, provision_seconds=0.02) as cloud:
        cloud.compute.stockout(ZONE, "e2-standard-2", ["us-central1-b"])
        other = {"machineType": f"zones/{ZONE}/machineTypes/e2-standard-2"}
        command = ["node", "drive.js", cloud.rest.url, json.dumps(body()), json.dumps(other), ZONE]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "made": "DONE", f"zones/{ZONE}": [["ko-a", "RUNNING"]], "deleted": "DONE", "gone": 404,
            "failed": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "others": "us-central1-b",
        }  # fmt: skip
        cloud.ledger.assert_nothing_left()
