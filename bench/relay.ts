/** Commands over HTTP through a minimal relay: the least that a service built on the same Fastify can take. */

import { BaselineServer } from "./baseline-server.ts";
import { withBootedVm } from "./cold-boot.ts";
import type { Run } from "./command-turns.ts";
import type { Fixture } from "./fixture.ts";
import { HttpConnection } from "./http-connection.ts";

/** Runs the commands in a VM booted for this purpose. */
export function withRelay<T>(fixture: Fixture, work: (run: Run) => Promise<T>): Promise<T> {
  return withBootedVm(fixture, async (folder) => {
    await using server = await BaselineServer.start(["relay-server.ts", folder]);
    const connection = await HttpConnection.open(server.url);
    try {
      return await work(async (cmd, ...args) => {
        const body = JSON.stringify({ cmd, args, timeout: 0 });
        const { status, text } = await connection.ask("POST", "/v1/capsules/relayed/exec", "", body);
        if (status !== 200) throw new Error(`the relay answered ${status} ${text}`);
        return (JSON.parse(text) as { stdout: string }).stdout;
      });
    } finally {
      connection.close();
    }
  });
}
