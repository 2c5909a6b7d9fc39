/**
 * The end of a background process, waited for without its output. Agents of capsules older than this daemon cannot be
 * asked for that: there it is heard by attaching, as long as the process lives.
 */
import type { Exit, Selector } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { AgentFailure } from "./failure.ts";
import { commandOutputs, OutputStream } from "./output.ts";
import { decodeExit, selectorRequest, Verb } from "./protocol.ts";

export async function exitOf(channel: Channel, selector: Selector, signal?: AbortSignal): Promise<Exit> {
  try {
    return await channel.call(Verb.AWAIT, selectorRequest(Verb.AWAIT, selector), decodeExit, signal);
  } catch (error) {
    if (!(error instanceof AgentFailure && error.failure === "invalid")) throw error;
    return heardExit(channel, selector, signal);
  }
}

function heardExit(channel: Channel, selector: Selector, signal?: AbortSignal): Promise<Exit> {
  return new Promise((resolve, reject) => {
    const stream = new OutputStream(channel, Verb.ATTACH, selectorRequest(Verb.ATTACH, selector), commandOutputs, {
      started() {},
      output: (_, chunk) => stream.consumed(chunk.length),
      exited: (exit) => settle(() => resolve(exit)),
      failed: (error) => settle(() => reject(error)),
    });
    const leave = () => {
      stream.cancel();
      settle(() => reject(signal?.reason));
    };
    const settle = (end: () => void) => {
      signal?.removeEventListener("abort", leave);
      end();
    };
    if (signal?.aborted) leave();
    else signal?.addEventListener("abort", leave, { once: true });
  });
}
