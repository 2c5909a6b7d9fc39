import assert from "node:assert/strict";
import { test } from "node:test";
import { linesIn, portRows, portsIn } from "./ports.ts";

const socket = (port: number, address: string, cmd: string, pid: number | null) => ({
  ...{ port, address, cmd, pid, public: false, url: "" },
});

test("a port has one row with all its sockets, and a public one has a row without any", () => {
  const listening = [
    socket(8000, "0.0.0.0", "node", 7),
    socket(22, "127.0.0.1", "", null),
    socket(8000, "::", "node", 7),
    socket(8000, "::1", "nginx", 9),
  ];
  const rows = portRows(listening, new Set([8000, 443]), "http://{port}-cl-a.localhost");
  assert.deepEqual(rows, [
    {
      ...{ port: 22, programs: ["unknown"], addresses: ["127.0.0.1"], isPublic: false },
      url: "http://22-cl-a.localhost",
    },
    { port: 443, programs: [], addresses: [], isPublic: true, url: "http://443-cl-a.localhost" },
    {
      ...{ port: 8000, programs: ["node (PID 7)", "nginx (PID 9)"], addresses: ["0.0.0.0", "::", "::1"] },
      ...{ isPublic: true, url: "http://8000-cl-a.localhost" },
    },
  ]);
});

test("a long command is cut", () => {
  const [row] = portRows([socket(1, "::", "a".repeat(5_000), 2)], new Set(), "");
  assert.equal(row!.programs[0], `${"a".repeat(200)}… (PID 2)`);
});

test("typed ports are numbers, and words that are none keep their place", () => {
  assert.deepEqual(portsIn(""), []);
  assert.deepEqual(portsIn(" 3000, 8080\n80,"), [3000, 8080, 80]);
  assert.deepEqual(portsIn("1 0x50 -1 1e3 x"), [1, Number.NaN, Number.NaN, Number.NaN, Number.NaN]);
});

test("typed entries are lines without the empty ones", () => {
  assert.deepEqual(linesIn("  a \n\n\tb:80\r\n"), ["a", "b:80"]);
});
