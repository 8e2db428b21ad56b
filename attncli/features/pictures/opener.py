"""The opener for pictures in all commands that read files."""

from dataclasses import replace

from attncli.errors import UserError
from attncli.features.pictures.reading import picture_in_chat_template, read_picture, read_picture_to_write
from attncli.features.pictures.tokens import part_that_sees
from attncli.models.openers import FileInput, Opener
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt


class PictureOpener(Opener):
    """A picture, with a text if the model reads both."""

    def read(self, pretrained: Pretrained, given: FileInput) -> Reading:
        return read_picture(pretrained, given.file, given.text)

    def read_to_predict(self, pretrained: Pretrained, given: FileInput) -> Reading:
        # Models that predict words read a picture and words in one run.
        reader = pretrained if given.text is None else replace(pretrained, model=pretrained.whole)
        return read_picture(reader, given.file, given.text)

    def read_for_layer(self, pretrained: Pretrained, given: FileInput) -> Reading:
        name = pretrained.name
        if given.is_cross and not pretrained.has_decoder:
            reason = "does not run an encoder and a decoder in one pass"
            raise UserError(f"model: {name} {reason}: use attn heads or attn generate")
        if given.is_cross and given.text is None:
            raise UserError("sentence: is missing: supply the words that look at the picture")
        if pretrained.has_decoder and given.text is not None and not given.is_cross:
            reason = f"the encoder of {name} reads only the picture"
            raise UserError(f"sentence: {reason}: omit the text, or use attn cross")
        return read_picture(pretrained, given.file, given.text)

    def read_prompt(self, pretrained: Pretrained, given: FileInput) -> Prompt:
        text = given.text or ""
        if given.question is not None:
            text = f"{text.rstrip()}\n\n{given.question}".strip()
        if given.chat:
            text = picture_in_chat_template(text, pretrained)
        whole = replace(pretrained, model=pretrained.whole)
        reading = read_picture_to_write(whole, given.file, text, is_whole=given.chat)
        most, count = pretrained.most_tokens(), len(reading.text.ids)
        num_new = 1 if given.max_new_tokens is None else given.max_new_tokens
        if reading.context is None and most is not None and count + num_new - 1 > most:
            got = f"{count} tokens of the picture and the text, and {num_new} new ones"
            raise UserError(f"max_new_tokens: {pretrained.name} has room for {most} tokens (got {got})")
        return Prompt(reading.text, reading.context, inputs=reading.inputs, part=reading.part)

    def reader(self, pretrained: Pretrained, text: str | None) -> Pretrained:
        return part_that_sees(pretrained) if text is None else pretrained


PICTURES = PictureOpener()
