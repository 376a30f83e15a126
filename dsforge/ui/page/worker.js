// The worker: Python with the unmodified planner. Takes questions as JSON text, gives answers.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const HOME = "/home/web_user";
const ENVIRONMENT = {
  HOME,
  HF_HUB_OFFLINE: "1", // Python has no network
  PYDANTIC_DISABLE_PLUGINS: "__all__",
};

async function started() {
  const archive = fetch("python.zip").then(bytes);
  const python = await loadPyodide({
    indexURL: new URL("pyodide/", self.location).href,
    env: ENVIRONMENT,
  });
  self.postMessage({ stage: "python" });
  python.FS.mkdirTree(HOME);
  python.FS.chdir(HOME);
  python.unpackArchive(await archive, "zip", { extractDir: "/lib/planner" });
  python.runPython("import sys; sys.path.insert(0, '/lib/planner')");
  const answered = python.runPython("from dsforge.ui.worker import answered; answered");
  self.postMessage({ stage: "planner" });
  return answered;
}

async function bytes(response) {
  if (!response.ok) throw new Error(`${response.url}: HTTP ${response.status}`);
  return response.arrayBuffer();
}

const ready = started();
ready.catch((error) => self.postMessage({ failed: String(error?.message ?? error) }));

self.addEventListener("message", async ({ data }) => {
  const answered = await ready;
  self.postMessage({ id: data.id, answer: answered(data.question) });
});
