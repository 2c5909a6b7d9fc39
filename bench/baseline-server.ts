/**
 * A baseline server in a process of its own. It prints its address when it listens, and exits when its standard input is
 * closed, which happens when this process ends.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";

export class BaselineServer implements AsyncDisposable {
  readonly url: string;
  readonly #end: () => Promise<void>;

  /** `args`: a program of this folder and its arguments. Throws when it does not start. */
  static async start(args: readonly string[]): Promise<BaselineServer> {
    const child = spawn(process.execPath, args, { cwd: import.meta.dirname, stdio: ["pipe", "pipe", "inherit"] });
    const gone = once(child, "exit");
    const end = async () => {
      child.kill();
      await gone;
    };
    const [said] = (await Promise.race([once(child.stdout, "data"), gone])) as [unknown];
    if (!Buffer.isBuffer(said)) throw new Error(`the baseline did not start: ${args.join(" ")}`);
    return new BaselineServer(said.toString().trim(), end);
  }

  private constructor(url: string, end: () => Promise<void>) {
    this.url = url;
    this.#end = end;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#end();
  }
}
