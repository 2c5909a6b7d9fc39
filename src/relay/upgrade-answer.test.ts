import assert from "node:assert/strict";
import { test } from "node:test";
import { namesUpgrade, UpgradeAnswer } from "./upgrade-answer.ts";

const switching = (fields: string, line = "HTTP/1.1 101 Switching Protocols") => `${line}\r\n${fields}\r\n\r\n`;
const both = "Connection: Upgrade\r\nUpgrade: raw";
const early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";

/** The bytes until it is known, and what. */
const answers: [what: string, text: string, switches: boolean | undefined][] = [
  ["a switch", switching(both), true],
  ["a switch without a reason", switching(both, "HTTP/1.1 101"), true],
  ["of several protocols", switching("connection: keep-alive, upgrade\r\nUPGRADE: a/1, b"), true],
  ["behind others", `HTTP/1.1 100 Continue\r\n\r\n${early}${switching(both)}`, true],
  ["half", switching(both).slice(0, -1), undefined],
  ["half behind another one", early + switching(both).slice(0, -1), undefined],
  ["a page", `HTTP/1.1 200 OK\r\n${both}\r\n\r\n`, false],
  ["a page with a switch as its content", `HTTP/1.1 200 OK\r\n\r\n${switching(both)}`, false],
  ["no answer", `\r\n${switching(both)}`, false],
  ["of HTTP/1.0", switching(both, "HTTP/1.0 101 Switching Protocols"), false],
  ["of an odd line", switching(both, "HTTP/1.1  101 Switching Protocols"), false],
  ["with lines that end in LF", `${switching(both).replaceAll("\r", "")}\r\n\r\n`, false],
  ["with a folded line", switching(`${both}\r\n folded`), false],
  ["without Connection", switching("Upgrade: raw"), false],
  ["without Upgrade", switching("Connection: Upgrade"), false],
  ["to no protocol", switching("Connection: Upgrade\r\nUpgrade: raw,"), false],
  ["to HTTP/2", switching("Connection: Upgrade\r\nUpgrade: raw, H2C"), false],
  ["to HTTP", switching("Connection: Upgrade\r\nUpgrade: HTTP/2.0"), false],
  ["too long", `HTTP/1.1 103 Early Hints\r\nLink: ${"x".repeat(20_000)}`, false],
  ["too long, and whole", switching(`${both}\r\nX: ${"x".repeat(20_000)}`), false],
];

for (const [what, text, switches] of answers) {
  test(`${what}: ${switches}`, () => {
    const bytes = Buffer.from(text, "latin1");
    assert.equal(new UpgradeAnswer().take(bytes), switches);
    const answer = new UpgradeAnswer();
    let found: boolean | undefined;
    for (let at = 0; at < bytes.length && found === undefined; at++) found = answer.take(bytes.subarray(at, at + 1));
    assert.equal(found, switches);
  });
}

test("a request asks for another protocol in both fields", () => {
  assert.ok(namesUpgrade(["Host", "a", "Connection", "Upgrade", "Upgrade", "websocket"]));
  assert.ok(!namesUpgrade(["Host", "a", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c"]));
  assert.ok(!namesUpgrade(["Host", "a", "Upgrade", "websocket"]));
});
