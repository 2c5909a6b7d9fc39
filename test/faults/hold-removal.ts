/** Preloaded into a server, holds the removal of every capsule's checkpoint for ever, as a disk that has stopped answering. */
import fs from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";

const { rm } = fs;
fs.rm = (path, options) =>
  /\/capsules\/[^/]+\/checkpoint$/.test(String(path)) ? new Promise(() => {}) : rm(path, options);
syncBuiltinESMExports();
