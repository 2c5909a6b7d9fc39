/** GET /v1/capsules/{id} at 16 connections: requests per second and latency. */
import autocannon from "autocannon";
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";

const connections = 16;
const seconds = 5;

export async function reads(rig: Rig): Promise<Figure[]> {
  const id = await rig.createRunning();
  const result = await autocannon({
    url: `${rig.url}/v1/capsules/${id}`,
    connections,
    duration: seconds,
    headers: { "x-api-key": rig.key },
  });
  await rig.destroy(id);
  if (result.non2xx > 0 || result.errors > 0) throw new Error(`${result.non2xx + result.errors} reads failed`);
  const { requests, latency } = result;
  const samples = result["2xx"];
  return [
    {
      name: `GET /v1/capsules/{id}, ${connections} connections`,
      unit: "requests/s",
      measured: { p50: requests.p50, p95: requests.p97_5, p99: requests.p99, samples },
    },
    {
      name: `the same, latency`,
      unit: "ms",
      measured: { p50: latency.p50, p95: latency.p97_5, p99: latency.p99, samples },
    },
  ];
}
