/** Commands over HTTP through next to nothing: what any service has to cost that is built on the same Fastify. */
import { earlyOptimization } from "../src/operator/serve.ts";
import { withBootedVm } from "./cold-boot.ts";
import type { Run } from "./command-turns.ts";
import { HttpConnection } from "./http-connection.ts";
import type { Rig } from "./rig.ts";
import { YardstickServer } from "./yardstick-server.ts";

/** Commands run in a VM of their own, which nobody else asks for anything. */
export function withRelay<T>(rig: Rig, work: (run: Run) => Promise<T>): Promise<T> {
  return withBootedVm(rig, async (folder) => {
    await using server = await YardstickServer.start([...earlyOptimization, "relay-server.ts", folder]);
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
