/** One terminal: xterm.js on the screen, a session in the capsule behind it. */
import { effect } from "@preact/signals";
import { FitAddon } from "@xterm/addon-fit";
import { SerializeAddon } from "@xterm/addon-serialize";
import { type ITheme, Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";
import { strictDocument, strictly } from "../parts/strict-document.ts";
import { useDashboard } from "../state/dashboard.ts";
import type { KeptTerminal } from "../state/kept-terminals.ts";
import type { Service } from "../state/service.ts";
import { type LineState, TerminalLine } from "../state/terminal-line.ts";

/** Lines that are kept over a reload. */
const keptLines = 500;

/** How a terminal is reached from outside while it is shown. */
export interface LiveTerminal {
  line: TerminalLine;
  /** Its screen as escape sequences. */
  screen: () => string;
  focus: () => void;
}

interface TerminalViewProps {
  capsuleId: string;
  number: number;
  /** A session to go on with, and what stood on its screen. */
  kept: KeptTerminal | undefined;
  isShown: boolean;
  isRunning: boolean;
  onTag: (tag: string) => void;
  onLive: (terminal: LiveTerminal | undefined) => void;
  onClose: () => void;
}

export function TerminalView(props: TerminalViewProps) {
  const { number, isShown, isRunning, onClose } = props;
  const place = useRef<HTMLElement>(null);
  const [state, setState] = useState<LineState>({ phase: "joining" });
  const [opened, setOpened] = useState<Opened>();
  const { service } = useDashboard();
  useEffect(() => {
    const made = open(place.current!, props, service);
    const unwatch = effect(() => setState(made.line.state.value));
    props.onLive(made);
    setOpened(made);
    return () => {
      props.onLive(undefined);
      unwatch();
      made.close();
    };
  }, []);
  useEffect(() => {
    if (isRunning) opened?.line.rejoin();
  }, [isRunning, opened]);
  return (
    <div class="terminal" hidden={!isShown}>
      <section class="terminal-screen" ref={place} aria-label={`Terminal ${number}`} />
      <div class="terminal-foot" role="status">
        <Word state={state} isRunning={isRunning} onClose={onClose} />
      </div>
    </div>
  );
}

function Word({ state, isRunning, onClose }: { state: LineState; isRunning: boolean; onClose: () => void }) {
  switch (state.phase) {
    case "joining":
      return <span>Connecting …</span>;
    case "parted":
      return (
        <span>{isRunning ? "Connecting …" : "The capsule is paused; the session goes on when it is resumed."}</span>
      );
    case "live":
      return <span>Connected. The session stays when you reload or leave. Ctrl+F6 leads out of the terminal.</span>;
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
  close: () => void;
}

function open(place: HTMLElement, { capsuleId, kept, onTag }: TerminalViewProps, service: Service): Opened {
  const terminal = new Terminal({
    documentOverride: strictDocument(),
    screenReaderMode: true,
    cursorBlink: true,
    fontFamily: getComputedStyle(place).getPropertyValue("--mono"),
    fontSize: 13,
    scrollback: 5_000,
    theme,
  });
  const fit = new FitAddon();
  const serialize = new SerializeAddon();
  terminal.loadAddon(fit);
  terminal.loadAddon(serialize);
  strictly(() => terminal.open(place));
  fit.fit();
  let unwritten = kept?.screen;
  terminal.write(unwritten ?? "", () => {
    unwritten = undefined;
  });
  terminal.attachCustomKeyEventHandler((event) => !leaves(event));
  const line = new TerminalLine({
    ...(kept === undefined ? {} : { tag: kept.tag }),
    size: sizeOf(terminal),
    connect: (tag, connection) => service.terminal(capsuleId, tag, connection),
    onTag,
    onOutput: (bytes) => terminal.write(bytes),
  });
  terminal.onData((text) => line.type(text));
  terminal.onBinary((text) => line.type(text));
  terminal.onResize((size) => line.resize(size));
  const watch = new ResizeObserver(() => place.offsetParent !== null && fit.fit());
  watch.observe(place);
  return {
    line,
    screen: () => unwritten ?? serialize.serialize({ scrollback: keptLines }),
    focus: () => terminal.focus(),
    close() {
      watch.disconnect();
      line.leave();
      terminal.dispose();
    },
  };
}

/** The terminal takes every key, Tab too; this one leads back to the page. */
function leaves(event: KeyboardEvent): boolean {
  if (event.key !== "F6" || !event.ctrlKey) return false;
  event.preventDefault();
  document.querySelector<HTMLElement>("[role=tab][aria-selected=true]")?.focus();
  return true;
}

function sizeOf({ cols, rows }: Terminal) {
  return { cols, rows };
}

/** Dark in both themes: programs choose their colours for it. */
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
