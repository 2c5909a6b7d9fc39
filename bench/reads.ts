/**
 * GET /v1/capsules/{id} at 16 connections, in turns with the same Fastify answering a constant of the same length. What counts
 * is the ratio of all that each has answered: what happens once in a second is paid for by whom it happens to.
 */
import { Load } from "./load.ts";
import type { Rig } from "./rig.ts";
import { summarize } from "./statistics.ts";
import { YardstickServer } from "./yardstick-server.ts";

const connections = 16;
/** Of each side, short enough for both to meet the same machine: its pace changes from one second to the next. */
const slices = 270;
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
  for (let slice = 0; slice < rig.rounds(slices, 3 * slices); slice++) {
    for (const side of slice % 2 === 0 ? [served, constant] : [constant, served]) await side.take();
  }
  await service.destroy(id);
  const against = { name: "Fastify with a constant, in turns", measured: summarize(constant.perSecond) };
  report.note("get", served.perSecond, { constant: { value: served.pace / constant.pace, against } });
  report.note("getLatency", served.latencies, {});
}

class Side implements Disposable {
  /** Requests per second, slice by slice. */
  readonly perSecond: number[] = [];
  /** Milliseconds, of all requests. */
  readonly latencies: number[] = [];
  #seconds = 0;
  readonly #load: Load;

  static async open(url: string, path: string, key: string): Promise<Side> {
    const load = await Load.open(url, path, key, connections);
    await load.slice(warmUpMs);
    return new Side(load);
  }

  private constructor(load: Load) {
    this.#load = load;
  }

  async take(): Promise<void> {
    const { seconds, latencies } = await this.#load.slice(sliceMs);
    this.perSecond.push(latencies.length / seconds);
    for (const latency of latencies) this.latencies.push(latency);
    this.#seconds += seconds;
  }

  /** Requests per second in all slices together. */
  get pace(): number {
    return this.latencies.length / this.#seconds;
  }

  [Symbol.dispose](): void {
    this.#load[Symbol.dispose]();
  }
}
