// Builds the page as one file without anything to load: agentloop/service/trace/viewer.html.
//
// The content security policy allows exactly the script and the style that are built here, by their hashes. The page names the
// SHA-256 of what it is built of, by which `hatch_build.py` and a test see that it is current.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(root, "..", "agentloop", "service", "trace", "viewer.html");

const result = await build({
  entryPoints: [join(root, "src", "main.tsx")],
  bundle: true,
  minify: true,
  write: false,
  outdir: root,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "ascii",
  logLevel: "warning",
});

const text = (ending) => result.outputFiles.find((file) => file.path.endsWith(ending)).text.trim();
const hash = (content) => `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
const script = text(".js");
const style = text(".css");
if (/<\/(script|style)|<!--/i.test(script + style)) {
  throw new Error("the script or the style holds text that would end its element");
}

const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "connect-src 'self'",
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

const inputs = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
const sources = createHash("sha256");
for (const name of [...inputs, ...readdirSync(join(root, "src")).map((file) => `src/${file}`)].sort()) {
  sources.update(`${name}\0`).update(readFileSync(join(root, name))).update("\0");
}

const parts = { policy, script, style, sources: sources.digest("hex") };
const page = readFileSync(join(root, "src", "page.html"), "utf8").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, page);
console.log(`${target}: ${Math.round(page.length / 1024)} kB`);
