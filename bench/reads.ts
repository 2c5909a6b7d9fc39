/**
 * GET /v1/capsules/{id} at 16 connections, in turns with the same Fastify answering a constant of the same length. What counts
 * is the ratio of all that each has answered: what happens once in a second is paid for by whom it happens to. The constant's
 * process has done nothing else in its life, so it is held against a server that has not either; what the run's own server
 * answers, after all that came before, stands beside it.
 */
import { earlyOptimization } from "../src/operator/serve.ts";
import { Load, type Slice } from "./load.ts";
import type { Rig } from "./rig.ts";
import { Service } from "./service.ts";
import { summarize } from "./statistics.ts";
import { YardstickServer } from "./yardstick-server.ts";

const connections = 16;
/** Two processes that run the same code differ by up to a tenth, as their compilers happened to meet it. */
const processes = 4;
/** Of each process, short enough for all to meet the same machine: its pace changes from one second to the next. */
const slices = 50;
const sliceMs = 60;
const warmUpMs = 1_000;

export async function reads(rig: Rig): Promise<void> {
  const { report } = rig;
  const [served, constant, aged] = [new Side(), new Side(), new Side()];
  const agedId = await rig.service.createRunning();
  for (let each = 0; each < rig.rounds(processes, 3 * processes); each++) {
    await using service = await Service.start({ CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" });
    const path = `/v1/capsules/${await service.createRunning()}`;
    const answer = JSON.stringify(await service.ask("GET", path));
    await using yardstick = await YardstickServer.start([...earlyOptimization, "constant-server.ts", answer]);
    using ofServed = await Load.open(service.url, path, service.key, connections);
    using ofConstant = await Load.open(yardstick.url, path, service.key, connections);
    const agedPath = `/v1/capsules/${agedId}`;
    using ofAged = await Load.open(rig.service.url, agedPath, rig.service.key, connections);
    const loads = [
      [served, ofServed],
      [constant, ofConstant],
      [aged, ofAged],
    ] as const;
    for (const [, load] of loads) await load.slice(warmUpMs);
    // One after the other, round and round: none follows itself, and each follows either other as often.
    const order = each % 2 === 0 ? loads : loads.toReversed();
    for (let slice = 0; slice < slices; slice++) {
      for (const [side, load] of order) side.add(await load.slice(sliceMs));
    }
  }
  await rig.service.destroy(agedId);
  const against = { name: "Fastify with a constant, in turns", measured: summarize(constant.perSecond) };
  report.note("get", served.perSecond, { constant: { value: served.pace / constant.pace, against } });
  report.note("getLatency", served.latencies, {});
  report.note("getAged", [(100 * aged.pace) / constant.pace], {});
}

class Side {
  /** Requests per second, slice by slice. */
  readonly perSecond: number[] = [];
  /** Milliseconds, of all requests. */
  readonly latencies: number[] = [];
  #seconds = 0;

  add({ seconds, latencies }: Slice): void {
    this.perSecond.push(latencies.length / seconds);
    for (const latency of latencies) this.latencies.push(latency);
    this.#seconds += seconds;
  }

  /** Requests per second in all slices together. */
  get pace(): number {
    return this.latencies.length / this.#seconds;
  }
}
