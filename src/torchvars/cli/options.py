"""Options that several commands have."""

import argparse


def add_img_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--img-size", type=int, metavar="PIXELS", help="side of the pictures (default: the model's own)"
    )


def add_batch(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--batch", type=int, default=default, metavar="N", help="batch size (default: %(default)s)")


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of data loading processes (default: 1)"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="device: cpu, cuda, cuda:1, mps, ... (default: the accelerator if there is one)",
    )
