/** The accessibility checks of axe-core on a page of the dashboard. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  help: string;
  nodes: { html: string; failureSummary?: string }[];
}

/** The violations that axe finds within `scope`, one line for each element, and whether anything leaves the screen. */
export async function inspect(page: Page, scope = "html"): Promise<string[]> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const found = await page.evaluate(async (scope) => {
    const { axe } = window as unknown as { axe: { run: (scope: string) => Promise<{ violations: Violation[] }> } };
    return (await axe.run(scope)).violations;
  }, scope);
  const wrong = found.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html.slice(0, 200)} ${failureSummary}`),
  );
  const { innerWidth, scrollWidth } = await page.evaluate(() => {
    return { innerWidth, scrollWidth: document.documentElement.scrollWidth };
  });
  return scrollWidth > innerWidth ? [...wrong, `the page is ${scrollWidth} px wide`] : wrong;
}
