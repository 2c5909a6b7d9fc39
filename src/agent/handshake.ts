/**
 * Synchronizes with a guest over a pipe that may still hold bytes of an earlier connection. The host sends zeros, which
 * complete any frame that was cut off, and HELLO with a random nonce. It discards input until that nonce returns in a
 * WELCOME.
 *
 * HELLO says the version that a saved agent is known to speak: agents built before the range of versions ignore a HELLO of
 * any version but theirs. Later ones answer every HELLO with the nearest version that they speak.
 *
 * A flag of HELLO asks for the agent's verbs. Neither older agents nor older hosts see a frame that they cannot read: the
 * former ignore the flag, and the latter do not set it.
 *
 * A booting VM does not read the pipe and may lose bytes, so HELLO is repeated until the deadline. Each one has a new
 * nonce, because the agent resets the connection at every HELLO: an answer to an older one would be followed by another
 * reset. A running agent answers the first HELLO at once.
 */
import { CapsuleError } from "../wire/errors.ts";
import { Channel, type ChannelOptions } from "./channel.ts";
import { violation } from "./failure.ts";
import { encodeFrame, FrameType, listVerbsFlag, maxPayloadBytes } from "./frames.ts";
import { Pipe, type PipeReader } from "./pipe.ts";
import {
  decodeWelcome,
  describeMismatch,
  hello,
  limits,
  paddingBytes,
  protocolVersions,
  speaks,
  type VersionRange,
  type Welcome,
} from "./protocol.ts";
import { ProtocolError } from "./records.ts";
import { newHello, WelcomeScanner } from "./welcome-scanner.ts";

export interface HandshakeOptions extends Omit<ChannelOptions, "verbs"> {
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  /** The version that the agent is known to speak. Default: the newest of `versions`. */
  protocol?: number | undefined;
  /** The versions that this side speaks, by default `protocolVersions`. */
  versions?: VersionRange | undefined;
}

/** Delay before HELLO is repeated; it doubles with each repetition, up to the second value. */
const firstRepeatMs = 100;
const lastRepeatMs = 800;

const padding = Buffer.alloc(paddingBytes);

class Handshake implements PipeReader {
  readonly result: Promise<{ channel: Channel; welcome: Welcome }>;
  readonly #options: HandshakeOptions;
  readonly #versions: VersionRange;
  readonly #pipe: Pipe;
  readonly #space = Buffer.allocUnsafe(maxPayloadBytes);
  readonly #resolve: (result: { channel: Channel; welcome: Welcome }) => void;
  readonly #reject: (error: Error) => void;
  readonly #deadline: NodeJS.Timeout;
  readonly #onAbort: () => void;
  #repeat: NodeJS.Timeout | undefined;
  #hello = newHello();
  #scan = new WelcomeScanner(this.#hello, decodeWelcome);
  #readBytes = 0;
  #isSettled = false;

  constructor(socketPath: string, options: HandshakeOptions) {
    const { promise, resolve, reject } = Promise.withResolvers<{ channel: Channel; welcome: Welcome }>();
    this.result = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#options = options;
    this.#versions = options.versions ?? protocolVersions;
    this.#pipe = new Pipe(socketPath, this);
    const late = `the guest agent did not answer within ${options.deadlineMs} ms`;
    this.#deadline = setTimeout(() => this.#fail(new CapsuleError("agent_error", late)), options.deadlineMs);
    this.#onAbort = () => {
      this.#fail(
        new CapsuleError("agent_error", "connecting to the guest agent was aborted", { cause: options.signal?.reason }),
      );
    };
    options.signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (options.signal?.aborted) this.#onAbort();
    else this.#sendHello(firstRepeatMs);
  }

  space(): Uint8Array {
    return this.#space;
  }

  filled(bytes: number): void {
    if (this.#isSettled) return;
    this.#readBytes += bytes;
    try {
      const found = this.#scan.take(this.#space.subarray(0, bytes));
      if (found) this.#succeed(found.welcome, found.rest);
      else if (this.#readBytes > limits.handshakeBytes)
        throw new ProtocolError(`no WELCOME in ${limits.handshakeBytes} bytes`);
    } catch (error) {
      this.#fail(violation(error));
    }
  }

  drained(): void {}

  lost(cause: Error | undefined): void {
    this.#fail(new CapsuleError("agent_error", "the connection to the guest agent was lost", { cause }));
  }

  #sendHello(repeatMs: number): void {
    const { epoch, nonce } = this.#hello;
    const payload = hello(nonce, this.#options.protocol ?? this.#versions.max);
    this.#pipe.write(padding);
    this.#pipe.write(encodeFrame({ type: FrameType.HELLO, flags: listVerbsFlag, epoch, stream: 0 }, payload));
    this.#repeat = setTimeout(() => this.#repeatHello(repeatMs), repeatMs);
  }

  #repeatHello(afterMs: number): void {
    const nextMs = Math.min(2 * afterMs, lastRepeatMs);
    if (this.#pipe.queuedBytes > 0) {
      // The guest has not read the last HELLO yet, so it is not lost and need not be repeated.
      this.#repeat = setTimeout(() => this.#repeatHello(afterMs), afterMs);
      return;
    }
    this.#hello = newHello();
    this.#scan = new WelcomeScanner(this.#hello, decodeWelcome);
    this.#sendHello(nextMs);
  }

  #succeed(welcome: Welcome, rest: Buffer): void {
    if (!speaks(this.#versions, welcome.version)) {
      const mismatch = describeMismatch(welcome.version, this.#versions);
      this.#fail(new CapsuleError("agent_error", `the guest agent speaks ${mismatch}`));
      return;
    }
    this.#finish();
    const channel = new Channel(this.#pipe, this.#hello.epoch, { ...this.#options, verbs: welcome.verbs });
    this.#pipe.reader = channel;
    channel.push(rest);
    this.#resolve({ channel, welcome });
  }

  #fail(error: Error): void {
    if (this.#isSettled) return;
    this.#finish();
    this.#pipe.destroy();
    this.#reject(error);
  }

  #finish(): void {
    this.#isSettled = true;
    clearTimeout(this.#deadline);
    clearTimeout(this.#repeat);
    this.#options.signal?.removeEventListener("abort", this.#onAbort);
  }
}

/** Resolves with a synchronized channel. Rejects with CapsuleError("agent_error") and closes the socket. */
export function handshake(
  socketPath: string,
  options: HandshakeOptions,
): Promise<{ channel: Channel; welcome: Welcome }> {
  return new Handshake(socketPath, options).result;
}
