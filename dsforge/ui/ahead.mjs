// Compiles the page's Python ahead, in the runtime of the page itself: its bytecode is of no other version.
//   node ahead.mjs RUNTIME PLANNER.zip SCRIPT.py OUT.zip
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [runtime, planner, script, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${runtime}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: `${runtime}/` });
python.unpackArchive(new Uint8Array(readFileSync(planner)), "zip", { extractDir: "/lib/planner" });
python.runPython(readFileSync(script, "utf8"));
writeFileSync(out, python.FS.readFile("/tmp/bytecode.zip"));
