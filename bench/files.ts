/**
 * Files over HTTP: throughput against the dumb pipe, growth of the server's memory meanwhile, and the time of a long
 * listing.
 */
import { DumbPipe } from "./dumb-pipe.ts";
import type { Fixture } from "./fixture.ts";
import { rssMib } from "./process-costs.ts";
import { pairedRatio } from "./report.ts";
import type { Service } from "./service.ts";
import { summarize, timed } from "./statistics.ts";
import { checkContent, download, makeFile, upload } from "./transfers.ts";

const mib = 1 << 20;
const streamedBytes = 256 * mib;
const longBytes = 3 * 1024 * mib;
/** Each upload and download is next to one through the dumb pipe, so that both see the same machine. */
const turns = 5;
const entries = 10_000;
const listingRounds = 5;
const samplingMs = 20;

export async function files(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const id = await service.createRunning();
  await streaming(fixture, id);
  const listings = await listing(service, id);
  report.note("listing", listings, { bound: { value: summarize(listings).p50 } });
  if (fixture.isLong) {
    const growth = await longStreams(service, id);
    report.note("longStreamMemory", [growth], { most: { value: growth } });
  }
  await service.destroy(id);
}

async function streaming(fixture: Fixture, id: string): Promise<void> {
  const { service, report } = fixture;
  await using dumb = await DumbPipe.start(fixture);
  const file = await makeFile(service, streamedBytes);
  const speeds: Record<"write" | "read" | "dumbWrite" | "dumbRead", number[]> = {
    write: [],
    read: [],
    dumbWrite: [],
    dumbRead: [],
  };
  const speed = async (work: () => Promise<unknown>) => streamedBytes / 1_000 / (await timed(work));
  const growth: number[] = [];
  for (let turn = 0; turn < turns; turn++) {
    const theirs = async () => {
      speeds.dumbWrite.push(await speed(() => dumb.write(streamedBytes)));
      await dumb.sync();
      speeds.dumbRead.push(await speed(() => dumb.read(streamedBytes)));
    };
    const ours = async () => {
      speeds.write.push(await speed(() => upload(service, id, file)));
      await service.exec(id, "sync");
      speeds.read.push(await speed(() => download(service, id, streamedBytes)));
    };
    await Promise.all([dumb.sync(), service.exec(id, "sync")]);
    if (turn % 2 === 0) await theirs();
    growth.push(await rssGrowth(service, ours));
    if (turn % 2 === 1) await theirs();
  }
  await checkContent(service, id, file);
  const against = (samples: number[], dumb: number[]) => pairedRatio(asTurns(samples), "dumb pipe", asTurns(dumb));
  report.note("streamWrite", speeds.write, { dumb: against(speeds.write, speeds.dumbWrite) });
  report.note("streamRead", speeds.read, { dumb: against(speeds.read, speeds.dumbRead) });
  report.note("streamMemory", growth, { most: { value: Math.max(...growth) } });
}

/** One turn per sample. */
function asTurns(samples: number[]): number[][] {
  return samples.map((sample) => [sample]);
}

async function longStreams(service: Service, id: string): Promise<number> {
  const file = await makeFile(service, longBytes);
  return rssGrowth(service, async () => {
    await upload(service, id, file);
    await download(service, id, longBytes);
  });
}

async function listing(service: Service, id: string): Promise<number[]> {
  const make = `mkdir -p /root/many && cd /root/many && seq -f 'a-file-of-ordinary-length-%05g.txt' ${entries} | xargs touch`;
  await service.exec(id, "bash", "-c", make);
  const samples: number[] = [];
  for (let each = 0; each < listingRounds; each++) {
    let found = 0;
    samples.push(
      await timed(async () => {
        const body = { path: "/root/many" };
        found = (await service.ask<{ entries: object[] }>("POST", `/v1/capsules/${id}/files/list`, body)).entries
          .length;
      }),
    );
    if (found !== entries) throw new Error(`${found} entries were listed instead of ${entries}`);
  }
  return samples;
}

/** The peak of the server's memory above its value at the start, MiB. */
async function rssGrowth(service: Service, work: () => Promise<void>): Promise<number> {
  const before = rssMib(service.pid);
  let most = before;
  const sampling = setInterval(() => {
    most = Math.max(most, rssMib(service.pid));
  }, samplingMs);
  try {
    await work();
  } finally {
    clearInterval(sampling);
  }
  return Math.max(most, rssMib(service.pid)) - before;
}
