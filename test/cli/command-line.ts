/** Runs `./capsule` as scripts do. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import type { Readable, Writable } from "node:stream";
import { root } from "../sdk/sdk-package.ts";
import { within } from "../wait-for.ts";

const deadlineMs = 120_000;

export const program = join(root, "capsule");

export interface Ended {
  stdout: string;
  stderr: string;
  code: number | null;
}

export class CommandLine {
  readonly env: Record<string, string>;

  /** `env`: the only variables passed on, besides PATH and HOME. The user's own contexts are not. */
  constructor(env: Record<string, string>) {
    const { PATH = "", HOME = "/" } = process.env;
    this.env = { PATH, HOME, XDG_CONFIG_HOME: "/nonexistent", ...env };
  }

  async run(args: string[], { input, cwd }: { input?: string | Uint8Array; cwd?: string } = {}): Promise<Ended> {
    const child = this.start(args, cwd);
    const [stdout, stderr] = [gathered(child.stdout), gathered(child.stderr)];
    child.stdin.end(input);
    const [code] = (await once(child, "close")) as [number | null];
    return { stdout: await stdout, stderr: await stderr, code };
  }

  start(args: string[], cwd?: string): ChildProcessByStdio<Writable, Readable, Readable> {
    return spawn(program, args, {
      env: this.env,
      stdio: ["pipe", "pipe", "pipe"],
      ...(cwd === undefined ? {} : { cwd }),
    });
  }
}

/** Resolves with the first text on the stream that matches. */
export async function said(stream: Readable, pattern: RegExp): Promise<string> {
  let text = "";
  const found = async () => {
    for await (const chunk of stream.iterator({ destroyOnReturn: false })) {
      text += chunk;
      if (pattern.test(text)) return text;
    }
    throw new Error(`no output matched ${pattern}:\n${text}`);
  };
  return within(() => `output that matches ${pattern}, after ${JSON.stringify(text)}`, found(), { deadlineMs });
}

async function gathered(stream: Readable): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
