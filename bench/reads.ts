/**
 * GET /v1/capsules/{id} on 16 connections, each of which asks again as soon as it is answered. The server is the run's own,
 * which has created, paused and destroyed capsules before.
 */
import type { Fixture } from "./fixture.ts";
import { Load } from "./load.ts";
import { summarize } from "./statistics.ts";

const connections = 16;
const warmUpMs = 1_000;
const sliceMs = 250;
const slices = 40;

export async function reads(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const id = await service.createRunning();
  using load = await Load.open(service.url, `/v1/capsules/${id}`, service.key, connections);
  await load.slice(warmUpMs);
  const latencies: number[] = [];
  const perSecond: number[] = [];
  for (let slice = 0; slice < fixture.rounds(slices, 4 * slices); slice++) {
    const measured = await load.slice(sliceMs);
    for (const latency of measured.latencies) latencies.push(latency);
    perSecond.push(measured.latencies.length / measured.seconds);
  }
  await service.destroy(id);
  report.note("get", latencies, { tail: { value: summarize(latencies).p99 } });
  report.note("getRate", perSecond, {});
}
