"""Package sources: releases on an index, archives, source trees and installed packages."""
