/**
 * Getting in step with a guest over a pipe that may still hold the bytes of an earlier life: zeros to fill up what was
 * cut, HELLO with a fresh nonce, and then everything is thrown away until that nonce comes back.
 *
 * While a VM boots nobody reads the pipe and bytes may be lost, so HELLO is said again until the deadline, with a new
 * nonce each time: an answer to an older one would be followed by the agent's reset for the newer. An agent that is
 * there answers the first one at once; nothing waits on that path.
 */
import { randomBytes } from "node:crypto";
import { CapsuleError } from "../wire/errors.ts";
import { Channel, type ChannelOptions } from "./channel.ts";
import { violation } from "./failure.ts";
import { encodeFrame, FrameType, headerBytes, maxPayloadBytes, writeHeader } from "./frames.ts";
import { Pipe, type PipeReader } from "./pipe.ts";
import { decodeWelcome, hello, limits, nonceBytes, paddingBytes, protocolVersion, type Welcome } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

export interface HandshakeOptions extends ChannelOptions {
  deadlineMs: number;
  signal?: AbortSignal | undefined;
}

export interface Greeting {
  epoch: number;
  nonce: Buffer;
}

/** HELLO is said again after this long, and after twice as long each time, up to the latter. */
const firstRepeatMs = 100;
const lastRepeatMs = 800;

/**
 * Longest WELCOME that is waited for. An honest one is below a hundred bytes; one that claims more, and comes byte by
 * byte, would be put together anew with each of them.
 */
const maxWelcomeBytes = 1_024;

const padding = Buffer.alloc(paddingBytes);
const nothing = Buffer.alloc(0);

function newGreeting(): Greeting {
  const random = randomBytes(nonceBytes + 2);
  return { nonce: random.subarray(0, nonceBytes), epoch: random.readUInt16LE(nonceBytes) || 1 };
}

/** Looks for one WELCOME in a stream of anything. */
export class WelcomeScan {
  readonly #greeting: Greeting;
  #kept: Buffer = nothing;

  constructor(greeting: Greeting) {
    this.#greeting = greeting;
  }

  /** The WELCOME, and a copy of the bytes behind it, once it is complete. */
  take(bytes: Uint8Array): { welcome: Welcome; rest: Buffer } | undefined {
    const seen = Buffer.concat([this.#kept, bytes]);
    const { epoch, nonce } = this.#greeting;
    for (let at = seen.indexOf(nonce); at >= 0; at = seen.indexOf(nonce, at + 1)) {
      const start = at - headerBytes;
      if (start < 0) continue;
      const length = seen.readUInt32LE(start + 8);
      if (length > maxWelcomeBytes) continue;
      const header = Buffer.alloc(headerBytes);
      writeHeader(header, 0, { type: FrameType.WELCOME, flags: 0, epoch, stream: 0, length });
      if (seen.compare(header, 0, headerBytes, start, at) !== 0) continue;
      if (seen.length < at + length) {
        this.#kept = seen.subarray(start);
        return undefined;
      }
      return { welcome: decodeWelcome(seen.subarray(at, at + length), nonce), rest: seen.subarray(at + length) };
    }
    this.#kept = seen.subarray(Math.max(0, seen.length - (headerBytes + nonceBytes - 1)));
    return undefined;
  }
}

class Handshake implements PipeReader {
  readonly result: Promise<{ channel: Channel; welcome: Welcome }>;
  readonly #options: HandshakeOptions;
  readonly #pipe: Pipe;
  readonly #space = Buffer.allocUnsafe(maxPayloadBytes);
  readonly #resolve: (result: { channel: Channel; welcome: Welcome }) => void;
  readonly #reject: (error: Error) => void;
  readonly #deadline: NodeJS.Timeout;
  readonly #onAbort: () => void;
  #repeat: NodeJS.Timeout | undefined;
  #greeting = newGreeting();
  #scan = new WelcomeScan(this.#greeting);
  #readBytes = 0;
  #over = false;

  constructor(socketPath: string, options: HandshakeOptions) {
    const { promise, resolve, reject } = Promise.withResolvers<{ channel: Channel; welcome: Welcome }>();
    this.result = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#options = options;
    this.#pipe = new Pipe(socketPath, this);
    const late = `the guest agent did not answer within ${options.deadlineMs} ms`;
    this.#deadline = setTimeout(() => this.#fail(new CapsuleError("agent_error", late)), options.deadlineMs);
    this.#onAbort = () => {
      this.#fail(
        new CapsuleError("agent_error", "given up waiting for the guest agent", { cause: options.signal?.reason }),
      );
    };
    options.signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (options.signal?.aborted) this.#onAbort();
    else this.#greet(firstRepeatMs);
  }

  space(): Uint8Array {
    return this.#space;
  }

  filled(bytes: number): void {
    if (this.#over) return;
    this.#readBytes += bytes;
    try {
      const found = this.#scan.take(this.#space.subarray(0, bytes));
      if (found) this.#succeed(found.welcome, found.rest);
      else if (this.#readBytes > limits.handshakeBytes) throw new ProtocolError("no WELCOME in all that it sent");
    } catch (error) {
      this.#fail(violation(error));
    }
  }

  drained(): void {}

  lost(cause: Error | undefined): void {
    this.#fail(new CapsuleError("agent_error", "the connection to the guest agent was lost", { cause }));
  }

  #greet(repeatMs: number): void {
    const { epoch, nonce } = this.#greeting;
    this.#pipe.write(padding);
    this.#pipe.write(encodeFrame({ type: FrameType.HELLO, flags: 0, epoch, stream: 0 }, hello(nonce)));
    this.#repeat = setTimeout(() => this.#greetAgain(repeatMs), repeatMs);
  }

  #greetAgain(afterMs: number): void {
    const nextMs = Math.min(2 * afterMs, lastRepeatMs);
    if (this.#pipe.queuedBytes > 0) {
      // Nobody has read the last one yet; it is not lost, and more of them would only be in its way.
      this.#repeat = setTimeout(() => this.#greetAgain(afterMs), afterMs);
      return;
    }
    this.#greeting = newGreeting();
    this.#scan = new WelcomeScan(this.#greeting);
    this.#greet(nextMs);
  }

  #succeed(welcome: Welcome, rest: Buffer): void {
    if (welcome.version !== protocolVersion) {
      throw new ProtocolError(`it speaks version ${welcome.version} of the protocol, not ${protocolVersion}`);
    }
    this.#finish();
    const channel = new Channel(this.#pipe, this.#greeting.epoch, this.#options);
    this.#pipe.reader = channel;
    channel.push(rest);
    this.#resolve({ channel, welcome });
  }

  #fail(error: Error): void {
    if (this.#over) return;
    this.#finish();
    this.#pipe.destroy();
    this.#reject(error);
  }

  #finish(): void {
    this.#over = true;
    clearTimeout(this.#deadline);
    clearTimeout(this.#repeat);
    this.#options.signal?.removeEventListener("abort", this.#onAbort);
  }
}

/** Resolves with a connection in step; rejects with CapsuleError("agent_error"), the socket closed. */
export function shakeHands(
  socketPath: string,
  options: HandshakeOptions,
): Promise<{ channel: Channel; welcome: Welcome }> {
  return new Handshake(socketPath, options).result;
}
