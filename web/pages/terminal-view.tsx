/** One terminal: xterm.js on the screen, a session in the capsule behind it. */
import { effect } from "@preact/signals";
import { FitAddon } from "@xterm/addon-fit";
import { SerializeAddon } from "@xterm/addon-serialize";
import { type ITheme, Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Capsule, hasCode, type Pty, type PtyConnection } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { strictDocument, withStrictDocument } from "../parts/strict-document.ts";
import { useDashboard } from "../state/dashboard.ts";
import type { SavedTerminal } from "../state/saved-terminals.ts";
import { type LineState, TerminalLine } from "../state/terminal-line.ts";

/** Lines of scrollback that survive a reload. */
const savedLines = 500;

/** A mounted terminal, for its tab bar. */
export interface LiveTerminal {
  line: TerminalLine;
  /** Its screen as escape sequences. */
  screen: () => string;
  focus: () => void;
}

interface TerminalViewProps {
  capsuleId: string;
  number: number;
  /** A session to join again, and its last screen. */
  saved: SavedTerminal | undefined;
  isShown: boolean;
  isRunning: boolean;
  fontPx: number;
  /** Takes the focus once it is live, unless the user has put it elsewhere. */
  takesFocus: boolean;
  onTag: (tag: string) => void;
  onLive: (terminal: LiveTerminal | undefined) => void;
  onClose: () => void;
}

export function TerminalView(props: TerminalViewProps) {
  const { number, isShown, isRunning, onClose } = props;
  const place = useRef<HTMLElement>(null);
  const [state, setState] = useState<LineState>({ phase: "joining" });
  const [opened, setOpened] = useState<Opened>();
  const { client } = useDashboard();
  useEffect(() => {
    const made = open(place.current!, props, client.capsule(props.capsuleId));
    const unwatch = effect(() => setState(made.line.state.value));
    props.onLive(made);
    setOpened(made);
    return () => {
      props.onLive(undefined);
      unwatch();
      made.close();
    };
  }, []);
  const takesFocus = useRef(props.takesFocus);
  useEffect(() => {
    if (!takesFocus.current || state.phase !== "live") return;
    takesFocus.current = false;
    if (isFocusFree()) opened?.focus();
  }, [state.phase, opened]);
  useEffect(() => {
    if (isRunning) opened?.line.rejoin();
  }, [isRunning, opened]);
  useEffect(() => opened?.setFont(props.fontPx), [props.fontPx, opened]);
  return (
    <div class="terminal" hidden={!isShown}>
      <section class="terminal-screen" ref={place} aria-label={`Terminal ${number}`} />
      <div class="terminal-foot" role="status">
        <StatusLine state={state} isRunning={isRunning} onClose={onClose} />
      </div>
    </div>
  );
}

function StatusLine({ state, isRunning, onClose }: { state: LineState; isRunning: boolean; onClose: () => void }) {
  switch (state.phase) {
    case "joining":
      return <span>Connecting …</span>;
    case "detached":
      return (
        <span>{isRunning ? "Connecting …" : "The capsule is paused; the session continues when it is resumed."}</span>
      );
    case "live":
      return (
        <span>
          Connected. The session survives a reload and leaving the page.
          <span class="by-keyboard"> Ctrl+F6 moves the focus out of the terminal.</span>
        </span>
      );
    case "ended":
      return (
        <>
          <span>{state.reason}</span>
          <Button onPress={onClose}>Close this terminal</Button>
        </>
      );
  }
}

interface Opened extends LiveTerminal {
  setFont: (px: number) => void;
  close: () => void;
}

function open(place: HTMLElement, { saved, fontPx, onTag }: TerminalViewProps, capsule: Capsule): Opened {
  const terminal = new Terminal({
    documentOverride: strictDocument(),
    screenReaderMode: true,
    cursorBlink: true,
    fontFamily: getComputedStyle(place).getPropertyValue("--mono"),
    fontSize: fontPx,
    scrollback: 5_000,
    theme,
  });
  const fit = new FitAddon();
  const serialize = new SerializeAddon();
  terminal.loadAddon(fit);
  terminal.loadAddon(serialize);
  withStrictDocument(() => terminal.open(place));
  fit.fit();
  let unwritten = saved?.screen;
  let isEmpty = !unwritten;
  terminal.write(unwritten ?? "", () => {
    unwritten = undefined;
  });
  terminal.attachCustomKeyEventHandler((event) => !movesFocus(event));
  const line = new TerminalLine({
    ...(saved === undefined ? {} : { tag: saved.tag }),
    size: sizeOf(terminal),
    connect: (tag, connection) =>
      tag === undefined ? capsule.pty(connection) : joined(capsule, tag, connection, isEmpty),
    onTag,
    onOutput: (bytes) => {
      isEmpty = false;
      terminal.write(bytes);
    },
  });
  terminal.onData((text) => line.type(text));
  terminal.onBinary((text) => line.type(text));
  terminal.onResize((size) => line.resize(size));
  const watch = new ResizeObserver(() => place.offsetParent !== null && fit.fit());
  watch.observe(place);
  return {
    line,
    screen: () => unwritten ?? serialize.serialize({ scrollback: savedLines }),
    focus: () => terminal.focus(),
    setFont(px) {
      terminal.options.fontSize = px;
      if (place.offsetParent !== null) fit.fit();
    },
    close() {
      watch.disconnect();
      line.disconnect();
      terminal.dispose();
    },
  };
}

/** Whether the focus is where the page or a click on a tab has left it. */
function isFocusFree(): boolean {
  const at = document.activeElement;
  return at === null || at.matches("body, #content h1, [role=tab][aria-selected=true]:not(:focus-visible)");
}

/** A terminal consumes every key, Tab too. Ctrl+F6 moves the focus back to the page's tabs. */
function movesFocus(event: KeyboardEvent): boolean {
  if (event.key !== "F6" || !event.ctrlKey) return false;
  event.preventDefault();
  document.querySelector<HTMLElement>("[role=tab][aria-selected=true]")?.focus();
  return true;
}

function sizeOf({ cols, rows }: Terminal) {
  return { cols, rows };
}

/** Dark in both themes: programs choose their colours for a dark background. */
const theme: ITheme = {
  background: "#12161c",
  foreground: "#d8dee6",
  cursor: "#7fd6d2",
  cursorAccent: "#12161c",
  selectionBackground: "#2f4a58",
  black: "#2a313b",
  red: "#f0817c",
  green: "#8fce8b",
  yellow: "#e5c07b",
  blue: "#7eb4f0",
  magenta: "#cf9be8",
  cyan: "#74cfcb",
  white: "#c9d1da",
  brightBlack: "#7d8896",
  brightRed: "#ff9d97",
  brightGreen: "#a9e3a4",
  brightYellow: "#f3d594",
  brightBlue: "#9cc8fb",
  brightMagenta: "#e0b6f5",
  brightCyan: "#93e3df",
  brightWhite: "#f2f5f8",
};

/** An empty terminal asks for the screen; agents of earlier releases do not have it. */
async function joined(capsule: Capsule, tag: string, connection: PtyConnection, isEmpty: boolean): Promise<Pty> {
  if (!isEmpty) return await capsule.rejoin(tag, connection);
  return await capsule.rejoin(tag, { ...connection, from: "start" }).catch((error) => {
    if (!hasCode(error, "conflict")) throw error;
    return capsule.rejoin(tag, connection);
  });
}
