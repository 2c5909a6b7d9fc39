/**
 * A server to compare ours with, in a process of its own. It prints its address as soon as it listens, and ends with its
 * standard input, so with us.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";

export class YardstickServer implements AsyncDisposable {
  readonly url: string;
  readonly #end: () => Promise<void>;

  /** Node's `args`, with the program's in this folder and what it is to be told. Throws when it does not start. */
  static async start(args: readonly string[]): Promise<YardstickServer> {
    const child = spawn(process.execPath, args, { cwd: import.meta.dirname, stdio: ["pipe", "pipe", "inherit"] });
    const gone = once(child, "exit");
    const end = async () => {
      child.kill();
      await gone;
    };
    const [said] = (await Promise.race([once(child.stdout, "data"), gone])) as [unknown];
    if (!Buffer.isBuffer(said)) throw new Error(`the yardstick did not start: ${args.join(" ")}`);
    return new YardstickServer(said.toString().trim(), end);
  }

  private constructor(url: string, end: () => Promise<void>) {
    this.url = url;
    this.#end = end;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#end();
  }
}
