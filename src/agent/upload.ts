/** Uploads a file to the guest, no faster than the guest consumes it. */
import { CapsuleError } from "../wire/errors.ts";
import type { FileAttributes, Upload } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { lacksVerb } from "./failure.ts";
import { attributesEvent, targetEvent } from "./file-requests.ts";
import { decodeEmpty, decodeTotal, request, Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

interface Deferred<T> {
  resolve(value: T): void;
  reject(error: Error): void;
}

export class FileUpload implements Upload, StreamHandler {
  readonly #channel: Channel;
  readonly #verb: Verb;
  readonly #stream: Stream;
  #failure: Error | undefined;
  #writing: Deferred<void> | undefined;
  #ending: Deferred<{ bytes: number }> | undefined;
  #hasTarget: boolean;

  /** An archive, into the directory at the path. */
  static ofArchive(channel: Channel, path: string): FileUpload {
    return new FileUpload(channel, path, undefined, Verb.EXTRACT);
  }

  constructor(
    channel: Channel,
    path: string | undefined,
    attributes: FileAttributes | undefined,
    verb: Verb = attributes === undefined ? Verb.WRITE : Verb.WRITE_AS,
  ) {
    this.#channel = channel;
    this.#verb = verb;
    this.#hasTarget = path !== undefined;
    this.#stream = channel.open(verb, request(verb).path(path ?? ""), this);
    if (attributes !== undefined) this.#stream.event(attributesEvent(attributes));
  }

  write(bytes: Uint8Array): Promise<void> {
    if (this.#failure) return Promise.reject(this.#failure);
    if (this.#writing || this.#ending)
      return Promise.reject(new TypeError("an upload takes one write at a time, before its end"));
    if (this.#stream.send(bytes)) return Promise.resolve();
    return new Promise((resolve, reject) => {
      this.#writing = { resolve, reject };
    });
  }

  target(path: string): void {
    if (this.#hasTarget) throw new TypeError("the upload has a target");
    this.#hasTarget = true;
    this.#stream.event(targetEvent(path));
  }

  /** An agent that has WRITE_AS takes attributes in a WRITE too. */
  attributes(attributes: FileAttributes): void {
    if (this.#channel.verbs.has(Verb.WRITE_AS)) {
      this.#stream.event(attributesEvent(attributes));
      return;
    }
    this.#stream.cancel();
    this.failed(lacksVerb(Verb.WRITE_AS));
  }

  end(): Promise<{ bytes: number }> {
    if (this.#failure) return Promise.reject(this.#failure);
    if (this.#ending || !this.#hasTarget)
      return Promise.reject(new TypeError("an upload ends once, after it has a target"));
    return new Promise((resolve, reject) => {
      this.#ending = { resolve, reject };
      this.#stream.end();
    });
  }

  cancel(): void {
    this.#stream.cancel();
    this.failed(new CapsuleError("agent_error", "the upload was abandoned"));
  }

  // ---- StreamHandler

  event(): void {
    throw new ProtocolError("an event in an upload");
  }

  data(): void {
    throw new ProtocolError("data in an upload");
  }

  drained(): void {
    this.#writing?.resolve();
    this.#writing = undefined;
  }

  result(payload: Buffer): void {
    const bytes = this.#verb === Verb.EXTRACT ? this.#extracted(payload) : decodeTotal(payload);
    if (!this.#ending || bytes !== this.#stream.sentBytes) {
      throw new ProtocolError(`an upload of ${this.#stream.sentBytes} bytes acknowledged as ${bytes}`);
    }
    this.#ending.resolve({ bytes });
    this.#ending = undefined;
    this.#failure = new TypeError("the upload is complete");
  }

  #extracted(payload: Buffer): number {
    decodeEmpty(payload);
    return this.#stream.sentBytes;
  }

  failed(error: Error): void {
    this.#failure ??= error;
    this.#writing?.reject(error);
    this.#ending?.reject(error);
    this.#writing = undefined;
    this.#ending = undefined;
  }
}
