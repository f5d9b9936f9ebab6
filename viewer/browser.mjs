// Unpacks the browser of the tests, with the libraries and fonts that a bare machine lacks, into the folder .browser.
import { mkdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = join(dirname(fileURLToPath(import.meta.url)), ".browser");
const draft = `${folder}.new`;
rmSync(draft, { recursive: true, force: true });
mkdirSync(draft);
// The package unpacks to the folder of temporary files, and its libraries only where it believes that it runs in the cloud.
process.env.TMPDIR = draft;
process.env.AWS_EXECUTION_ENV = "AWS_Lambda_nodejs20.x";
const { default: chromium } = await import("@sparticuz/chromium");
await chromium.executablePath();
rmSync(folder, { recursive: true, force: true });
renameSync(draft, folder);
