/** GET /v1/capsules/{id} at 16 connections, in turns with the same Fastify answering a constant of the same length. */
import { Load } from "./load.ts";
import { ratioOfTurns } from "./report.ts";
import type { Rig } from "./rig.ts";
import { YardstickServer } from "./yardstick-server.ts";

const connections = 16;
const turns = 90;
/** Of each side in a turn, all within a third of a second: how fast this machine is changes from one second to the next. */
const slices = 3;
const sliceMs = 60;
const warmUpMs = 1_000;

export async function reads(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const id = await service.createRunning();
  const path = `/v1/capsules/${id}`;
  const answer = JSON.stringify(await service.ask("GET", path));
  await using yardstick = await YardstickServer.start(["constant-server.ts", answer]);
  using served = await Side.open(service.url, path, service.key);
  using constant = await Side.open(yardstick.url, path, service.key);
  for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) {
    served.begin();
    constant.begin();
    for (let slice = 0; slice < slices; slice++) {
      for (const side of (turn + slice) % 2 === 0 ? [served, constant] : [constant, served]) await side.take();
    }
  }
  await service.destroy(id);
  const against = ratioOfTurns(served.turns, "Fastify with a constant", constant.turns);
  report.note("get", served.turns.flat(), { constant: against });
  report.note("getLatency", served.latencies, {});
}

class Side implements Disposable {
  /** Requests per second. */
  readonly turns: number[][] = [];
  /** 99th percentile of each slice. */
  readonly latencies: number[] = [];
  readonly #load: Load;

  static async open(url: string, path: string, key: string): Promise<Side> {
    const load = await Load.open(url, path, key, connections);
    await load.slice(warmUpMs);
    return new Side(load);
  }

  private constructor(load: Load) {
    this.#load = load;
  }

  begin(): void {
    this.turns.push([]);
  }

  async take(): Promise<void> {
    const { requestsPerSecond, p99 } = await this.#load.slice(sliceMs);
    this.turns.at(-1)!.push(requestsPerSecond);
    this.latencies.push(p99);
  }

  [Symbol.dispose](): void {
    this.#load[Symbol.dispose]();
  }
}
