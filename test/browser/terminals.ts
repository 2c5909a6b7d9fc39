/** Terminals: typed into, found again after a reload, and after a pause. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Locator } from "playwright-core";
import { waitFor } from "../wait-for.ts";
import { deadline, service, Visitor } from "./browser.ts";

test("a session survives a reload of the page, with what stood on the screen", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  const { page } = visitor;
  await visitor.sees("Connected.");
  await visitor.enters('mark=alpha$((6*7))omega; echo "at $mark"');
  await visitor.reads(/^at alpha42omega/);
  await page.reload();
  await visitor.sees("Connected.");
  await visitor.reads(/^at alpha42omega/);
  await visitor.enters('echo "still $mark"');
  await visitor.reads(/^still alpha42omega/);
  assert.equal(await capsule.sh("pgrep -c -x bash -t pts/0 || true"), "1");
});

test("several terminals are kept apart; a closed one's shell ends, and it does not come back", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  const { page } = visitor;
  await visitor.sees("Connected.");
  await visitor.enters("tty");
  await visitor.reads(/^\/dev\/pts\/0/);
  await visitor.presses("New terminal");
  await page.getByRole("button", { name: "Terminal 2", exact: true }).waitFor();
  await page.locator(".terminal:not([hidden])").getByText("Connected.").waitFor();
  await visitor.enters("tty");
  await visitor.reads(/^\/dev\/pts\/1/);
  await page.getByRole("button", { name: "Terminal 1", exact: true }).click();
  await visitor.reads(/^\/dev\/pts\/0/);
  await visitor.presses("Close terminal 1");
  await capsule.sh("while pgrep -x bash -t pts/0 > /dev/null; do sleep 0.05; done");
  await page.reload();
  await visitor.sees("Connected.");
  assert.equal(await page.getByRole("button", { name: /^Terminal \d$/ }).count(), 1);
  await visitor.reads(/^\/dev\/pts\/1/);
});

test("a terminal that was left is found and joined from elsewhere, and no other is started", deadline, async () => {
  await using capsule = await service().capsule();
  {
    await using left = await Visitor.at(capsule, "terminal");
    await left.sees("Connected.");
    await left.enters("mark=left; echo is $mark");
    await left.reads(/^is left/);
  }
  await using visitor = await Visitor.at(capsule, "terminal");
  await visitor.presses(/^Join \/bin\/bash ?started (just now|\d)/);
  await visitor.sees("Connected.");
  await visitor.reads(/^is left/);
  await visitor.enters("echo still $mark");
  await visitor.reads(/^still left/);
  assert.equal(await capsule.sh("pgrep -c -x bash"), "1");
});

test("a terminal waits through a pause, and its program's end is told", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  await visitor.sees("Connected.");
  await visitor.enters("mark=before; echo is $mark");
  await visitor.reads(/^is before/);
  await capsule.pause();
  await visitor.sees("the session continues when it is resumed");
  await capsule.resume();
  await visitor.sees("Connected.");
  await visitor.enters("echo still $mark; exit 3");
  await visitor.sees("The program ended with exit code 3.");
  await visitor.reads(/^still before/);
  await visitor.presses("Close this terminal");
  await visitor.sees("No terminal open");
});

test("a program's own colours are shown, and a burst of output arrives to its end", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  await visitor.sees("Connected.");
  await visitor.enters(String.raw`seq 50000; printf '\e[38;2;1;200;3mgreen%s\e[0m\n' ish`);
  await visitor.reads(/^greenish/);
  await visitor.reads(/^50000/);
  const word = visitor.page.locator(".xterm-rows span").filter({ hasText: "greenish" }).last();
  assert.equal(await word.evaluate((element) => getComputedStyle(element).color), "rgb(1, 200, 3)");
});

test("the keyboard gets out of a terminal again", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  const { page } = visitor;
  await visitor.sees("Connected.");
  await page.getByRole("textbox", { name: "Terminal input" }).focus();
  await page.keyboard.press("Control+F6");
  const tab = page.getByRole("tab", { name: "Terminal" });
  assert.ok(await tab.evaluate((element) => element === document.activeElement));
  await page.keyboard.press("ArrowRight");
  await visitor.sees(".bashrc");
});

test("the terminal that opens by itself takes what is typed, as soon as it is live", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  await page.getByRole("link", { name: capsule.id }).click();
  await visitor.sees("Connected.");
  await isFocused(page.getByRole("textbox", { name: "Terminal input" }));
  await page.keyboard.type("echo typed$((6*7))\n");
  await visitor.reads(/^typed42/);
  await page.reload();
  await visitor.sees("Connected.");
  await isFocused(page.getByRole("textbox", { name: "Terminal input" }));
});

test("a terminal that becomes live does not take the focus from where the user has put it", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const answers = Promise.withResolvers<void>();
  await page.route("**/v1/ws-tickets", async (route) => {
    await answers.promise;
    await route.continue();
  });
  await page.getByRole("link", { name: capsule.id }).click();
  await visitor.sees("Connecting …");
  const tab = page.getByRole("tab", { name: "Terminal" });
  await page.getByRole("button", { name: "New terminal" }).focus();
  await page.keyboard.press("Shift+Tab");
  const close = page.getByRole("button", { name: "Close terminal 1" });
  await isFocused(close);
  answers.resolve();
  await visitor.sees("Connected.");
  await isFocused(close);
  // By the keyboard over the tabs, which open their pages as they get the focus.
  await tab.focus();
  await page.keyboard.press("ArrowRight");
  await visitor.sees(".bashrc");
  await page.keyboard.press("ArrowLeft");
  await visitor.sees("Connected.");
  await isFocused(tab);
});

test("whoever leaves a capsule's page is asked to end the shell that was started there", deadline, async () => {
  await using capsule = await service().capsule();
  {
    await using left = await Visitor.at(capsule, "terminal");
    await left.sees("Connected.");
  }
  await using visitor = await Visitor.at(capsule, "terminal");
  const { page } = visitor;
  await visitor.presses(/^Join \/bin\/bash/);
  await visitor.sees("Connected.");
  await visitor.presses("New terminal");
  await page.locator(".terminal:not([hidden])").getByText("Connected.").waitFor();
  await visitor.enters("tty");
  await visitor.reads(/^\/dev\/pts\/1/);
  await page.getByRole("tab", { name: "Files" }).click();
  await visitor.sees(".bashrc");
  await visitor.walksTo("#/capsules");
  await visitor.sees(`A shell is still running in ${capsule.id}.`);
  await visitor.presses("End it");
  await capsule.sh("while pgrep -x bash -t pts/1 > /dev/null; do sleep 0.05; done");
  assert.equal(await capsule.sh("pgrep -c -x bash -t pts/0"), "1");
  assert.equal(await page.getByText("A shell is still running").count(), 0);
});

for (const viewport of [
  { width: 1280, height: 800 },
  { width: 390, height: 844 },
]) {
  test(
    `the offer to end a shell covers no terminal, and moves none out of the window: ${viewport.width} px`,
    deadline,
    async () => {
      await using left = await service().capsule();
      await using capsule = await service().capsule();
      await using visitor = await Visitor.at(left, "terminal", { viewport });
      const { page } = visitor;
      await visitor.sees("Connected.");
      await visitor.walksTo(`#/capsules/${capsule.id}/terminal`);
      const offer = page.locator(".offer").filter({ hasText: left.id });
      await offer.waitFor();
      await visitor.sees("Connected.");
      const [above, terminal] = [await offer.boundingBox(), await page.locator(".terminals").boundingBox()];
      assert.ok(above!.y + above!.height <= terminal!.y, JSON.stringify({ above, terminal }));
      assert.ok(terminal!.y + terminal!.height <= viewport.height, JSON.stringify(terminal));
      await offer.getByRole("button", { name: "Dismiss" }).click();
      await offer.waitFor({ state: "detached" });
    },
  );
}

test(
  "a session that was left can be ended without joining it, and no screen outlives a sign-out",
  deadline,
  async () => {
    await using capsule = await service().capsule();
    await using left = await Visitor.at(capsule, "terminal");
    await left.sees("Connected.");
    await left.presses("Sign out");
    await left.page.getByRole("button", { name: "Sign in" }).waitFor();
    assert.equal(await left.page.evaluate(() => JSON.stringify(sessionStorage)), "{}");
    await left.signIn(service().key);
    await left.presses(/^End session pty-/);
    await capsule.sh("while pgrep -x bash -t pts/0 > /dev/null; do sleep 0.05; done");
    await left.page.getByRole("button", { name: /^Join/ }).waitFor({ state: "detached" });
  },
);

test("a terminal is as large as its window on demand, and its text as large as wished", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal", { viewport: { width: 1000, height: 700 } });
  const { page } = visitor;
  await visitor.sees("Connected.");
  const rows = () => page.locator(".xterm-rows > div").count();
  const fits = (isFit: (rows: number) => boolean) => waitFor("rows", async () => isFit(await rows()));
  const before = await rows();
  await visitor.presses("Full size");
  await fits((now) => now > before);
  const box = (await page.locator(".terminals").boundingBox())!;
  assert.deepEqual(box, { x: 0, y: 0, width: 1000, height: 700 });
  const full = await rows();
  await visitor.presses("Larger text");
  await visitor.presses("Larger text");
  await fits((now) => now < full);
  await visitor.presses("Leave full size");
  await page.reload();
  await visitor.sees("Connected.");
  await fits((now) => now < before);
  await visitor.enters("stty size");
  await visitor.reads(new RegExp(`^${await rows()} \\d+`));
});

/** Waits until it has the focus. */
async function isFocused(element: Locator): Promise<void> {
  await element.and(element.page().locator(":focus")).waitFor({ state: "attached" });
}
