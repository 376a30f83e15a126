// The worker: Python with the unmodified planner. Takes questions as JSON text, gives answers.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const HOME = "/home/web_user", PLANNER = "/lib/planner";
const ENVIRONMENT = {
  HOME,
  HF_HUB_OFFLINE: "1", // Python has no network
  PYDANTIC_DISABLE_PLUGINS: "__all__",
  PYTHONDONTWRITEBYTECODE: "1",
};
const NOT_HERE_YET = "NotHereYetError"; // of dsforge/ui/later.py

const python = loadPyodide({ indexURL: new URL("pyodide/", self.location).href, env: ENVIRONMENT });
const ready = started(part("planner.bin"));
const complete = ready.then(() => part("later.bin")).then(completed);
for (const each of [ready, complete]) each.catch((error) => self.postMessage({ failed: String(error?.message ?? error) }));

async function started(planner) {
  const { FS, runPython } = await python;
  self.postMessage({ stage: "python" });
  FS.mkdirTree(HOME);
  FS.chdir(HOME);
  write(FS, await planner);
  runPython(`
import json, sys
sys.path.insert(0, "${PLANNER}")
from dsforge.ui import later
with open("${PLANNER}/later.json") as names:
    later.expect(json.load(names))
`);
  const answered = runPython("from dsforge.ui.worker import answered; answered");
  self.postMessage({ stage: "planner" });
  return answered;
}

async function completed(files) {
  const { FS, runPython } = await python;
  write(FS, files);
  runPython("later.arrived()");
}

/** The files of a part, by path: a listing behind its length, then their contents. */
async function part(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${response.url}: HTTP ${response.status}`);
  const plain = response.body.pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(plain).arrayBuffer());
  let place = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const listing = JSON.parse(new TextDecoder().decode(bytes.subarray(4, place)));
  return listing.map(([file, size]) => [`${PLANNER}/${file}`, bytes.subarray(place, (place += size))]);
}

function write(FS, files) {
  const folders = new Set(files.map(([path]) => path.slice(0, path.lastIndexOf("/"))));
  for (const folder of folders) FS.mkdirTree(folder);
  for (const [path, bytes] of files) FS.writeFile(path, bytes);
}

/** The answer to a question; one that needs a module that is still on its way is asked again. */
async function answer(question) {
  const answered = await ready;
  try {
    return answered(question);
  } catch (error) {
    if (error.type !== NOT_HERE_YET) throw error;
    await complete;
    return answered(question);
  }
}

self.addEventListener("message", async ({ data }) => {
  self.postMessage({ id: data.id, answer: await answer(data.question) });
});
