/**
 * Runs whole-inside.ts as an ordinary user, beside an internet that this process opens: as root of user, network and mount namespaces of its
 * own (whole-rootless.test.ts).
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Internet } from "./internet.ts";
import { useResolver } from "./whole-world.ts";

const folder = mkdtempSync(join(tmpdir(), "whole-rootless-"));
try {
  useResolver(folder);
  await using internet = await Internet.open();
  // In a user namespace below this one the user has no capability for the network.
  const inside = ["--user", "--map-user=1000", "--map-group=1000", process.execPath];
  const child = spawn("unshare", [...inside, join(import.meta.dirname, "whole-inside.ts"), "rootless"], {
    stdio: ["ignore", "inherit", "inherit", "ipc"],
    env: { ...process.env, ...internet.environment },
  });
  internet.lendTo(child);
  const [code] = (await once(child, "exit")) as [number | null];
  process.exitCode = code ?? 1;
} finally {
  rmSync(folder, { recursive: true });
}
