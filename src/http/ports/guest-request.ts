/**
 * One request to a server in a capsule, over a connection that was dialled for it. Node's client writes the body and reads the answer,
 * so both messages are framed anew: bytes that one side would read as the end of a message cannot be more of it to the other.
 */
import { ClientRequest, type IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import { writeRequestHead } from "../node-internals.ts";

/** Status line and headers of the answer, and of all provisional ones before it. */
export const guestHeadMaxBytes = 64 * 1024;

export interface GuestRequestOptions {
  method: string;
  path: string;
  /** As `rawHeaders`. */
  headers: string[];
  /** Called with each provisional answer. */
  onInformation: (status: number, headers: string[]) => void;
}

export interface GuestAnswer {
  message: IncomingMessage;
  /** The first bytes behind the head of a 101; undefined: it is another status. */
  upgraded: Buffer | undefined;
}

export class GuestRequest {
  /** The request's body is written to it. */
  readonly message: ClientRequest;
  /** Rejects with "agent_error" when the guest resets, answers in something else than HTTP, or with too long a head. */
  readonly answer: Promise<GuestAnswer>;

  constructor(guest: Duplex, { method, path, headers, onInformation }: GuestRequestOptions) {
    const message = new ClientRequest({
      ...{ method, path, setHost: false, maxHeaderSize: guestHeadMaxBytes },
      createConnection: () => guest,
    });
    this.message = message;
    message.maxHeadersCount = 0; // bounded by their size
    let informationBytes = 0;
    this.answer = new Promise((resolve, reject) => {
      message.on("information", ({ statusCode, rawHeaders }) => {
        informationBytes += rawHeaders.reduce((sum, text) => sum + text.length + 2, 32);
        if (informationBytes > guestHeadMaxBytes) message.destroy(tooLong());
        else onInformation(statusCode, rawHeaders);
      });
      message.once("response", (answer) => resolve({ message: answer, upgraded: undefined }));
      message.once("upgrade", (answer, _guest, first) => resolve({ message: answer, upgraded: first }));
      // Later errors are those of the answer's body, which ends early.
      message.on("error", (error) => reject(refusalOf(error)));
    });
    this.answer.catch(() => {}); // it may be given up before it is awaited
    writeRequestHead(message, headers);
    // Node tells no error of a connection that was reset before it was the request's.
    if (guest.destroyed) message.destroy(guest.errored ?? undefined);
  }
}

function tooLong(): CapsuleError {
  return new CapsuleError("agent_error", `the head of the server's answer is larger than ${guestHeadMaxBytes} bytes`);
}

function refusalOf(error: NodeJS.ErrnoException): CapsuleError {
  if (error instanceof CapsuleError) return error;
  const { code = "" } = error;
  if (code === "HPE_HEADER_OVERFLOW") return tooLong();
  const why = code.startsWith("HPE_")
    ? `does not answer in HTTP: ${messageOf(error)}`
    : "closed the connection without an answer";
  return new CapsuleError("agent_error", `the server in the capsule ${why}`, { cause: error });
}
