/** The scenario of each of Node's WebSockets; the requests beside them are those of Node's fetch. */
import { apiKey, say, sayAborted, url } from "./scenario.ts";

// biome-ignore lint/suspicious/noExplicitAny: a scenario reads whatever it expects to be there
type Message = any;

const headers = { "X-API-Key": apiKey };

/** An open WebSocket, as its library is used. */
export interface Wire {
  send(text: string): void;
  /** Resolves when it is closed. */
  close(): Promise<void>;
  /** Breaks the connection off, without a close frame. */
  abort(): void;
}

/** `onText` is called with each message. */
export type Dial = (target: string, onText: (text: string) => void) => Promise<Wire>;

class Conversation {
  readonly #messages: Message[] = [];
  #wire: Wire | undefined;
  #wake = () => {};

  static async open(dial: Dial, path: string): Promise<Conversation> {
    const conversation = new Conversation();
    conversation.#wire = await dial(url.replace("http", "ws") + path, (text) => {
      conversation.#messages.push(JSON.parse(text));
      conversation.#wake();
    });
    return conversation;
  }

  get wire(): Wire {
    return this.#wire!;
  }

  send(message: object): void {
    this.wire.send(JSON.stringify(message));
  }

  enter(line: string): void {
    this.send({ type: "input", data: Buffer.from(line).toString("base64") });
  }

  async until(isDone: (messages: Message[]) => boolean): Promise<Message[]> {
    while (!isDone(this.#messages)) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#messages;
  }

  close(): Promise<void> {
    return this.wire.close();
  }
}

const joined = (messages: Message[], type: string) =>
  messages.map((each) => (each.type === type ? each.data : "")).join("");
const typed = (messages: Message[]) =>
  Buffer.concat(messages.map((each) => Buffer.from(each.type === "output" ? each.data : "", "base64"))).toString();
/** Others may have arrived with it, as the output that a terminal repeats. */
const firstOf = async (conversation: Conversation, type: string) => {
  const isIt = (message: Message) => message.type === type;
  return (await conversation.until((all) => all.some(isIt))).find(isIt);
};
const isLast = (type: string) => (messages: Message[]) => messages.at(-1)?.type === type;

export async function socketScenario(dial: Dial): Promise<void> {
  const created = await fetch(`${url}/v1/capsules`, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: '{"memory_mb":256}',
  });
  const { id } = (await created.json()) as { id: string };
  const at = `/v1/capsules/${id}`;
  await fetch(`${url + at}?wait=running&timeout=120`, { headers });

  const stream = await Conversation.open(dial, `${at}/exec/stream`);
  stream.send({ type: "start", cmd: "sh", args: ["-c", "echo out; echo err >&2; sleep 303"] });
  await stream.until((all) => joined(all, "stdout") === "out\n" && joined(all, "stderr") === "err\n");
  stream.send({ type: "stop" });
  const messages = await stream.until(isLast("exit"));
  say("stream", { first: messages[0].type, exit_code: messages.at(-1).exit_code });
  await stream.close();

  const terminal = await Conversation.open(dial, `${at}/pty`);
  terminal.send({ type: "start", cmd: "/bin/bash", cols: 80, rows: 24 });
  const started = await firstOf(terminal, "started");
  terminal.send({ type: "resize", cols: 120, rows: 40 });
  terminal.enter("stty size; word=again\n");
  await terminal.until((all) => typed(all).includes("40 120"));
  await terminal.close();
  const returned = await Conversation.open(dial, `${at}/pty`);
  returned.send({ type: "connect", tag: started.tag });
  const back = await firstOf(returned, "started");
  returned.enter("echo $word-and-$word\n");
  await returned.until((all) => typed(all).includes("again-and-again"));
  returned.send({ type: "kill" });
  const last = (await returned.until(isLast("exit"))).at(-1);
  say("terminal", { same: back.pid === started.pid, last: last.type });
  await returned.close();

  const dropped = await Conversation.open(dial, `${at}/exec/stream`);
  dropped.send({ type: "start", cmd: "sleep", args: ["304"] });
  await dropped.until(isLast("start"));
  dropped.wire.abort();
  await sayAborted("socket", id);

  const lost = await Conversation.open(dial, `${at}/pty`);
  lost.send({ type: "start", cmd: "sleep", args: ["305"] });
  await firstOf(lost, "started");
  lost.wire.abort();
  await sayAborted("terminal", id);
}
