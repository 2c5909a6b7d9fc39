/** The program's version, from package.json. */
import { readFileSync } from "node:fs";

const about = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { version: string };

export const version = about.version;
