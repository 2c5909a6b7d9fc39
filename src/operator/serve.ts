/** `capsule serve`: the daemon in the foreground, with its progress and a first curl on the screen. */
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { loadConfig } from "../config.ts";
import { startDaemon } from "../daemon.ts";

/**
 * V8 compiles a function for speed after four hundred calls, and five hundred after it last met a new kind of value; once
 * more, and better, after three thousand. A server's ways are walked a few hundred times a day, each time in caches that guests
 * have filled with their own things meanwhile: with fifty, a command costs the server a quarter less from the second hundred
 * on, and with three hundred another seventh from the fourth.
 */
export const earlyOptimization = [
  "--invocation-count-for-maglev=50",
  "--invocation-count-for-turbofan=300",
  "--minimum-invocations-after-ic-update=50",
];

export async function serve(): Promise<number> {
  const config = loadConfig();
  const stopped = Promise.withResolvers<void>();
  const startedMs = performance.now();
  const daemon = await startDaemon(config, (step) => console.error(`capsule: ${step} …`));
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    process.once(signal, () => {
      console.error(`capsule: ${signal}: stopping; running capsules go on and are found again by the next start`);
      daemon.stop().then(stopped.resolve, stopped.reject);
    });
  }
  process.on("SIGHUP", () => renewCertificate(daemon));
  noteUrl(config.dataDir, daemon.url);
  for (const flag of earlyOptimization) setFlagsFromString(flag); // from here on: what only a start runs stays as it is
  const seconds = ((performance.now() - startedMs) / 1_000).toFixed(1);
  console.error(welcome(daemon, config.dataDir, seconds));
  await stopped.promise;
  return 0;
}

function renewCertificate(daemon: { renewCertificate(): void }): void {
  try {
    daemon.renewCertificate();
    console.error("capsule: SIGHUP: the TLS files were read again");
  } catch (error) {
    console.error(`capsule: SIGHUP: the old certificate stays in use: ${(error as Error).message}`);
  }
}

/** For `capsule` on the same machine; it does without where the disk is full. */
function noteUrl(dataDir: string, url: string): void {
  const path = join(dataDir, "url");
  try {
    writeFileSync(`${path}.new`, `${url}\n`, { mode: 0o600 });
    renameSync(`${path}.new`, path);
  } catch (error) {
    console.error(`capsule: the address could not be noted in ${path}: ${(error as Error).message}`);
  }
}

function welcome(
  daemon: { url: string; newKey: string | undefined; accelerator: string },
  dataDir: string,
  seconds: string,
): string {
  const engine =
    daemon.accelerator === "kvm"
      ? "hardware virtualization (KVM)"
      : "software emulation (no usable KVM here: everything works, slower)";
  const lines = [`capsule: listening on ${daemon.url} after ${seconds} s, with ${engine}`];
  if (daemon.newKey !== undefined) {
    const shown = process.stderr.isTTY ? `:\n\n  ${daemon.newKey}` : ""; // never in the log of whoever started us
    lines.push("", `The first API key, of team "default", is in ${dataDir}/api-key${shown}`);
  }
  lines.push(
    "",
    "Try it:",
    "",
    `  KEY=$(cat ${dataDir}/api-key)`,
    `  ID=$(curl -s -X POST ${daemon.url}/v1/capsules -H "X-API-Key: $KEY" | sed 's/.*"id":"\\([^"]*\\)".*/\\1/')`,
    `  curl -s "${daemon.url}/v1/capsules/$ID?wait=running&timeout=30" -H "X-API-Key: $KEY"`,
    `  curl -s -X POST ${daemon.url}/v1/capsules/$ID/exec -H "X-API-Key: $KEY" -H 'Content-Type: application/json' \\`,
    `    -d '{"cmd":"python3","args":["-c","print(6*7)"]}'`,
    "",
  );
  return lines.join("\n");
}
