// What the browser tests ask of a page.
globalThis.look = {
    // the texts of a column, of the rows that are shown
    cells: (key) => [...document.querySelectorAll('#table tbody tr')]
        .filter((row) => !row.hidden)
        .map((row) => row.querySelector(`.c-${key} a`) ?? row.querySelector(`.c-${key}`))
        .map((cell) => cell.textContent),

    // what lies compressed in the page is unpacked
    ready: () => new Promise((done) => {
            const { dataset } = document.documentElement;
            const look = () => (dataset.ready ? done(dataset.ready) : setTimeout(look, 5));
            look();
        }),

    // elements whose text has a contrast of less than 4.5
    contrast: () => {
        const number = (text) => text.match(/[\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (element) => {
            for (let at = element; at; at = at.parentElement) {
                const color = number(getComputedStyle(at).backgroundColor);
                if (color.length === 3 || color[3] === 1) return color;
            }
        };
        for (const section of document.querySelectorAll('details')) section.open = true;
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        const poor = new Set();
        while (walker.nextNode()) {
            const element = walker.currentNode.parentElement;
            if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
            const style = getComputedStyle(element);
            const a = light(number(element.closest('svg') ? style.fill : style.color));
            const b = light(behind(element));
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            const name = `${element.tagName}.${element.getAttribute('class')}`;
            if (ratio < 4.5) poor.add(`${name} ${ratio.toFixed(2)}`);
        }
        return [...poor];
    },

    downloaded: async () => {
        let blob, name;
        URL.createObjectURL = (it) => { blob = it; return 'blob:none'; };
        HTMLAnchorElement.prototype.click = function () { name = this.download; };
        document.querySelector('#download').click();
        return [name, blob.type, await blob.text()];
    },

    copied: async () => {
        const copied = [];
        const writeText = async (text) => { copied.push(text); };
        Object.defineProperty(navigator, 'clipboard', {value: {writeText}});
        for (const button of document.querySelectorAll('.elements .copy')) button.click();
        await new Promise((done) => setTimeout(done, 60));
        return [copied, document.querySelectorAll('.elements tbody tr').length];
    },
};
