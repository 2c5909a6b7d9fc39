/** A command over HTTP, against the same program spawned by a program that is already inside. */
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { summarize, timed } from "./statistics.ts";

const batches = 5;
const perBatch = 40;

const spawnInside = `
import json, os, time
times = []
for _ in range(${perBatch}):
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], os.environ), 0)
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))
`;

export async function exec(rig: Rig): Promise<Figure[]> {
  const id = await rig.createRunning();
  const inside: number[] = [];
  const outside: number[] = [];
  for (let batch = 0; batch < batches; batch++) {
    inside.push(...(JSON.parse((await rig.exec(id, "python3", "-c", spawnInside)).stdout) as number[]));
    for (let each = 0; each < perBatch; each++) outside.push(await timed(() => rig.exec(id, "/bin/true")));
  }
  await rig.destroy(id);
  const measured = summarize(outside);
  const yardstick = summarize(inside);
  return [
    {
      name: "exec /bin/true over HTTP",
      unit: "ms",
      measured,
      comparedWith: { name: "posix_spawn inside the guest", measured: yardstick },
      target: { said: "p50 above the spawn inside, ms ≤ 3", value: measured.p50 - yardstick.p50, most: 3 },
    },
  ];
}
