/**
 * GET /v1/capsules/{id} at 16 connections, in turns with the same Fastify answering a constant of the same length; what
 * counts is the median of the turns' ratios.
 */
import autocannon from "autocannon";
import type { Rig } from "./rig.ts";
import { summarize } from "./statistics.ts";
import { YardstickServer } from "./yardstick-server.ts";

const connections = 16;
/** Many short ones: on a machine that others share, only loads that follow each other meet the same conditions. */
const turns = 16;
const secondsPerTurn = 1;

export async function reads(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const id = await service.createRunning();
  const path = `/v1/capsules/${id}`;
  const answer = JSON.stringify(await service.ask("GET", path));
  await using constant = await YardstickServer.start(["constant-server.ts", answer]);
  const served: number[] = [];
  const constants: number[] = [];
  const ratios: number[] = [];
  const latencies: number[] = [];
  for (const url of [service.url, constant.url]) await load(url + path, service.key); // both are warm from here on
  for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) {
    const { requests, latency } = await load(service.url + path, service.key);
    const { requests: answered } = await load(constant.url + path, service.key);
    served.push(requests.average);
    constants.push(answered.average);
    ratios.push(requests.average / answered.average);
    latencies.push(latency.p99);
  }
  await service.destroy(id);
  const against = { name: "Fastify with a constant", measured: summarize(constants) };
  report.note("get", served, { constant: { value: summarize(ratios).p50, against } });
  report.note("getLatency", latencies, {});
}

/** Throws when a request fails. */
async function load(url: string, key: string): Promise<autocannon.Result> {
  const result = await autocannon({ url, connections, duration: secondsPerTurn, headers: { "x-api-key": key } });
  const failed = result.non2xx + result.errors;
  if (failed > 0) throw new Error(`${failed} reads of ${url} failed`);
  return result;
}
