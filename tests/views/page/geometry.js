// Texts of a page by the boxes in which they are drawn: what lies over another text, is cut, or is broken.
// An expression whose value is a list of sentences, empty for a page without fault.
() => {
  const LEAST = 2; // pixels in each direction in which boxes must overlap or exceed a box
  const faults = [];
  const said = (node) => JSON.stringify(node.data.trim().replace(/\s+/g, " ").slice(0, 40));
  const name = (element) => {
    const own = element.id ? `#${element.id}` : String(element.className.baseVal ?? element.className).split(" ")[0];
    return `${element.localName}${own && !own.startsWith("#") ? "." : ""}${own}`;
  };
  const path = (element) => {
    const names = [];
    for (let at = element; at && names.length < 3; at = at.parentElement) names.unshift(name(at));
    return names.join(" ");
  };
  const isSeen = (element) =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });

  // The part of a box that its ancestors show, or null; `cut` gets the ancestor that hides some of it for good.
  function shown(element, { left, top, right, bottom }, cut) {
    let position = getComputedStyle(element).position;
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      const style = getComputedStyle(at);
      const clips = [style.overflowX, style.overflowY].map((value) => value !== "visible");
      if ((clips[0] || clips[1]) && !(style.display === "inline") && at !== document.body) {
        const box = at.getBoundingClientRect();
        if (cut && !cut.length) {
          const isCut = (overflow) => overflow === "hidden" || overflow === "clip";
          const isVertical = style.writingMode.startsWith("vertical");
          const hasDots = style.textOverflow === "ellipsis" || style.webkitLineClamp !== "none";
          const across = Math.max(box.left - left, right - box.right);
          const down = Math.max(box.top - top, bottom - box.bottom) - (isVertical ? 0 : (bottom - top) / 4);
          const isCutAcross = isCut(style.overflowX) && across > LEAST && !(hasDots && !isVertical);
          const isCutDown = isCut(style.overflowY) && down > LEAST && !(hasDots && isVertical);
          if (isCutAcross || (isCutDown && style.webkitLineClamp === "none")) cut.push(at);
        }
        if (clips[0]) [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
        if (clips[1]) [top, bottom] = [Math.max(top, box.top), Math.min(bottom, box.bottom)];
      }
      if (position === "fixed") break;
      position = style.position;
    }
    return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom } : null;
  }

  // A name for screen readers alone is a box of a pixel.
  const isForReaders = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { width, height } = at.getBoundingClientRect();
      const { overflow, clipPath } = getComputedStyle(at);
      if (clipPath === "inset(50%)" || (overflow !== "visible" && width <= 1 && height <= 1)) return true;
    }
    return false;
  };

  // The nearest ancestor with an edge or a ground of its own, which its text must not leave.
  function boxOf(element) {
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.display === "inline" || style.display === "contents" || at.namespaceURI !== document.body.namespaceURI) {
        if (at.localName !== "svg") continue;
        return at;
      }
      const hasGround = !/, 0\)$|transparent/.test(style.backgroundColor) || style.backgroundImage !== "none";
      const hasEdge = ["Left", "Right"].every((side) => parseFloat(style[`border${side}Width`]) > 0);
      if (hasGround || hasEdge || ["table-cell", "list-item"].includes(style.display)) return at;
    }
    return null;
  }

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, select, datalist, noscript, title, desc")) continue;
    if (!isSeen(element) || isForReaders(element)) continue;
    range.selectNodeContents(node);
    const rects = [...range.getClientRects()].filter(({ width, height }) => width > 0.5 && height > 0.5);
    if (!rects.length) continue;
    const cut = [];
    const boxes = rects.map((rect) => shown(element, rect, cut)).filter(Boolean);
    if (cut.length) faults.push(`cut: ${said(node)} in ${path(element)} by ${name(cut[0])}`);
    const box = boxOf(element);
    const around = box?.getBoundingClientRect();
    const scrolls = box && /auto|scroll/.test(getComputedStyle(box).overflowX);
    if (around && !scrolls && boxes.some(({ left, right }) => left < around.left - LEAST || right > around.right + LEAST))
      faults.push(`outside: ${said(node)} in ${path(element)} leaves ${name(box)}`);
    if (boxes.some(({ left, right }) => left < -LEAST || right > innerWidth + LEAST))
      faults.push(`off the page: ${said(node)} in ${path(element)}`);
    if (rects.length > 1) {
      for (const { 0: digits, index } of node.data.matchAll(/(?<!\w)[-−+±]?\d[\d.,]*(e[-−+]?\d+)?%?(?!\w)/g)) {
        range.setStart(node, index);
        range.setEnd(node, index + digits.length);
        const lines = new Set([...range.getClientRects()].filter(({ width }) => width > 0).map(({ top }) => Math.round(top)));
        if (lines.size > 1) faults.push(`broken: ${digits} of ${said(node)} in ${path(element)}`);
      }
    }
    for (const { left, top, right, bottom } of boxes) {
      const inset = (bottom - top) * 0.2; // a line's box is higher than its letters
      texts.push({ node, element, left, top: top + inset, right, bottom: bottom - inset });
    }
  }

  const isOpaque = (element) => !/, 0(\.\d+)?\)$|transparent/.test(getComputedStyle(element).backgroundColor);

  // A sheet from below, over what can be scrolled from under it.
  const isInSheet = ({ element }) => {
    for (let at = element; at; at = at.parentElement)
      if (getComputedStyle(at).position === "fixed" && isOpaque(at)) return true;
    return false;
  };

  // The upper text hides the lower one if it, or a box that holds it alone, has a ground.
  function isHidden(one, other) {
    if (isInSheet(one) !== isInSheet(other)) return true;
    const x = (Math.max(one.left, other.left) + Math.min(one.right, other.right)) / 2;
    const y = (Math.max(one.top, other.top) + Math.min(one.bottom, other.bottom)) / 2;
    for (const at of document.elementsFromPoint(x, y)) {
      const holds = [one, other].map(({ element }) => at.contains(element));
      if (holds[0] && holds[1]) return false;
      if ((holds[0] || holds[1]) && isOpaque(at)) return true;
    }
    return false;
  }

  texts.sort((one, other) => one.top - other.top);
  texts.forEach((one, place) => {
    for (let next = place + 1; next < texts.length && texts[next].top < one.bottom - LEAST; next++) {
      const other = texts[next];
      if (other.node === one.node) continue;
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (across > LEAST && down > LEAST && !isHidden(one, other))
        faults.push(`over: ${said(one.node)} in ${path(one.element)} and ${said(other.node)} in ${path(other.element)}`);
    }
  });
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) faults.push(`sideways: the page is ${scrollWidth} wide in ${clientWidth}`);
  return faults;
}
