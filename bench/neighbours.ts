/** A command in one capsule beside a hostile one, against the same command without a neighbour. */
import type { FigureId } from "./catalog.ts";
import type { Fixture } from "./fixture.ts";
import type { Finding } from "./report.ts";
import type { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const rounds = 5;
const perRound = 40;

/** The command that the neighbour runs until it is destroyed. */
const noises = {
  besideFlood: "exec yes", // travels to the daemon and is discarded there
  besideDisk: "while :; do dd if=/dev/zero of=/root/fill bs=1M count=512 conv=fsync; done 2>/dev/null",
  besideForks: "bomb() { bomb | bomb & }; bomb; exec sleep 1000",
  besideMemory: "while :; do tail /dev/zero; done 2>/dev/null",
  besideSpin: "while :; do :; done",
} as const satisfies Partial<Record<FigureId, string>>;

export async function neighbours(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const id = await service.createRunning();
  const sample = () => repeat(perRound, () => timed(() => service.exec(id, "/bin/true")));
  await sample();
  for (const [figure, noise] of Object.entries(noises) as [keyof typeof noises, string][]) {
    const quiet: number[] = [];
    const noisy: number[] = [];
    for (let round = 0; round < fixture.rounds(rounds, 3 * rounds); round++) {
      quiet.push(...(await sample()));
      await beside(service, noise, async () => void noisy.push(...(await sample())));
    }
    report.note(figure, noisy, { quiet: tail(noisy, quiet) });
  }
  await service.destroy(id);
}

function tail(noisy: number[], quiet: number[]): Finding {
  const against = { name: "the same in quiet", measured: summarize(quiet) };
  return { value: summarize(noisy).p95 / against.measured.p95, against };
}

/** A new neighbour per round, because each noise leaves its capsule changed. */
async function beside(service: Service, noise: string, work: () => Promise<void>): Promise<void> {
  const neighbour = await service.createRunning();
  const over = new AbortController();
  const noising = fetch(`${service.url}/v1/capsules/${neighbour}/exec`, {
    method: "POST",
    headers: { "x-api-key": service.key, "content-type": "application/json" },
    body: JSON.stringify({ cmd: "bash", args: ["-c", noise], timeout: 0 }),
    signal: over.signal,
  });
  noising.catch(() => {});
  try {
    await work();
  } finally {
    over.abort();
    await service.destroy(neighbour);
  }
}
