/**
 * Files over HTTP: how fast they stream, against a dumb pair of programs on the same kind of port; how much memory the
 * server takes meanwhile; how long a long listing takes.
 */
import { readFileSync } from "node:fs";
import { DumbPipe } from "./dumb-pipe.ts";
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { type Summary, summarize, timed } from "./statistics.ts";
import { checkContent, download, makeFile, upload } from "./transfers.ts";

const mib = 1 << 20;
const streamedBytes = 256 * mib;
const longBytes = 3 * 1024 * mib;
const rounds = 5;
const entries = 10_000;
const listings = 5;
const rssGrowthMib = 16;
const samplingMs = 20;

export async function files(rig: Rig): Promise<Figure[]> {
  const id = await rig.createRunning();
  const figures = [...(await streaming(rig, id)), await listing(rig, id)];
  if (rig.isLong) figures.push(await longStreams(rig, id));
  await rig.destroy(id);
  return figures;
}

async function streaming(rig: Rig, id: string): Promise<Figure[]> {
  await using dumb = await DumbPipe.start(rig);
  const file = await makeFile(rig, streamedBytes);
  const speeds: Record<"write" | "read" | "dumbWrite" | "dumbRead", number[]> = {
    write: [],
    read: [],
    dumbWrite: [],
    dumbRead: [],
  };
  const speed = async (work: () => Promise<unknown>) => streamedBytes / 1_000 / (await timed(work));
  const growth: number[] = [];
  for (let round = 0; round < rounds; round++) {
    await Promise.all([dumb.sync(), rig.exec(id, "sync")]);
    speeds.dumbWrite.push(await speed(() => dumb.write(streamedBytes)));
    await dumb.sync();
    growth.push(
      await rssGrowth(rig, async () => {
        speeds.write.push(await speed(() => upload(rig, id, file)));
        await rig.exec(id, "sync");
        speeds.read.push(await speed(() => download(rig, id, streamedBytes)));
      }),
    );
    speeds.dumbRead.push(await speed(() => dumb.read(streamedBytes)));
  }
  await checkContent(rig, id, file);
  return [
    streamFigure("stream/write", summarize(speeds.write), summarize(speeds.dumbWrite)),
    streamFigure("stream/read", summarize(speeds.read), summarize(speeds.dumbRead)),
    rssFigure("256 MiB each way", growth),
  ];
}

async function longStreams(rig: Rig, id: string): Promise<Figure> {
  const file = await makeFile(rig, longBytes);
  const growth = await rssGrowth(rig, async () => {
    await upload(rig, id, file);
    await download(rig, id, longBytes);
  });
  return rssFigure("3 GiB each way", [growth]);
}

async function listing(rig: Rig, id: string): Promise<Figure> {
  const make = `mkdir -p /root/many && cd /root/many && seq -f 'a-file-of-ordinary-length-%05g.txt' ${entries} | xargs touch`;
  await rig.exec(id, "bash", "-c", make);
  const samples: number[] = [];
  for (let each = 0; each < listings; each++) {
    let found = 0;
    samples.push(
      await timed(async () => {
        const body = { path: "/root/many" };
        found = (await rig.ask<{ entries: object[] }>("POST", `/v1/capsules/${id}/files/list`, body)).entries.length;
      }),
    );
    if (found !== entries) throw new Error(`${found} entries were listed instead of ${entries}`);
  }
  const measured = summarize(samples);
  const target = { said: "p50 in ms ≤ 1000", value: measured.p50, most: 1_000 };
  return { name: `files/list of ${entries} entries`, unit: "ms", measured, target };
}

function streamFigure(name: string, measured: Summary, yardstick: Summary): Figure {
  return {
    name: `${name}, ${streamedBytes / mib} MiB`,
    unit: "MB/s",
    measured,
    comparedWith: { name: "dumb pipe", measured: yardstick },
    target: { said: "≥ 1/2 of the dumb pipe", value: measured.p50 / yardstick.p50, least: 1 / 2 },
  };
}

function rssFigure(what: string, growth: number[]): Figure {
  const measured = summarize(growth);
  const target = { said: `most MiB ≤ ${rssGrowthMib}`, value: measured.p99 / mib, most: rssGrowthMib };
  return { name: `server's memory grows, ${what}`, unit: "bytes", measured, target };
}

/** How far the server's memory rises above what it is at the start. */
async function rssGrowth(rig: Rig, work: () => Promise<void>): Promise<number> {
  const before = rss(rig.serverPid);
  let most = before;
  const sampling = setInterval(() => {
    most = Math.max(most, rss(rig.serverPid));
  }, samplingMs);
  try {
    await work();
  } finally {
    clearInterval(sampling);
  }
  return Math.max(most, rss(rig.serverPid)) - before;
}

function rss(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) * 1024;
}
