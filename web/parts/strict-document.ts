/**
 * xterm.js under a Content-Security-Policy without 'unsafe-inline'. The policy forbids the text of a <style> element and
 * the attribute `style`; the same rules as a constructed style sheet, and the same declarations set by a script, are
 * allowed. So what xterm makes takes these ways instead.
 */

/** For its option documentOverride: its style elements become style sheets of the page. */
export function strictDocument(): Document {
  return new Proxy(document, {
    get(target, property) {
      if (property === "createElement") return createElement;
      const value: unknown = Reflect.get(target, property, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

/**
 * Opens a terminal. xterm.js 6.0 takes the page's own document for some of its elements although it was given another:
 * for the style of its scroll bar while it opens, and for the cells of its rows as long as it lives.
 */
export function strictly(open: () => void): void {
  HTMLSpanElement.prototype.setAttribute = setAttribute;
  document.createElement = createElement as Document["createElement"];
  try {
    open();
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
}

function createElement(name: string): HTMLElement {
  const element = Document.prototype.createElement.call(document, name === "style" ? "template" : name);
  return name === "style" ? sheetBehind(element) : element;
}

/** Its text becomes a style sheet of the document, which goes when the element does. */
function sheetBehind(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  Object.defineProperty(element, "textContent", {
    set(text: string) {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

/** As the standard's, but for the policy: a style set by a script's own declaration is no inline style. */
function setAttribute(this: HTMLElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}
